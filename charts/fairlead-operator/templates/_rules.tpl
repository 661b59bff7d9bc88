{{/*
Everything that the operator does to objects with a namespace. Secrets are not among it, and no pod is created, entered or
evicted.
*/}}
{{- define "fairlead-operator.rules" -}}
- apiGroups: [fairlead.dev]
  resources: [clusters, topics]
  verbs: [get, list, watch, patch]
- apiGroups: [fairlead.dev]
  resources: [clusters/status, topics/status]
  verbs: [patch]
# Owner references that hold back the owner's deletion: some Kubernetes clusters refuse to write them without this rule.
- apiGroups: [fairlead.dev]
  resources: [clusters/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims, pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
# Whether the namespace of a Topic is going. A Role gives this for its own namespace alone.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
# An Event that happens again after a restart of the operator is counted on. Events of StatefulSets say why pods are
# refused.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [get, list, create, patch]
{{- end }}
