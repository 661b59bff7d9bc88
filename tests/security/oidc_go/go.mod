module fairlead.test/oidc

go 1.26.0

require github.com/zitadel/oidc/v3 v3.52.0
