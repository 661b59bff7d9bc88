module fairlead.test/kubernetes/spark-operator

go 1.26.0

// Its definition of a SparkApplication is what a manifest is held against; nothing is built from it.
require github.com/kubeflow/spark-operator/v2 v2.5.2
