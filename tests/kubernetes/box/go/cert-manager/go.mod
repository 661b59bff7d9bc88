module fairlead.test/kubernetes/cert-manager

go 1.26.0

// Its definition of a Certificate is what the operator's Certificates are held against; nothing is built from it.
require github.com/cert-manager/cert-manager v1.19.1
