module fairlead.test/kubernetes/pause

go 1.26.0
