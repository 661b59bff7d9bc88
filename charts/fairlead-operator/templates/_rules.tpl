{{/*
Permissions of the operator on namespaced objects. They include neither creating pods, evicting pods nor running
commands in pods. Secrets are read by name only: those that the operator creates, and those that a Cluster or a Link names.
*/}}
{{- define "fairlead-operator.rules" -}}
- apiGroups: [fairlead.dev]
  resources: [clusters, topics, users, rebalances, etcdbackups, links]
  verbs: [get, list, watch, patch]
# The User with whose token Prometheus reads metrics.
- apiGroups: [fairlead.dev]
  resources: [users]
  verbs: [create, delete]
- apiGroups: [fairlead.dev]
  resources:
    [clusters/status, topics/status, users/status, rebalances/status, etcdbackups/status, links/status]
  verbs: [patch]
# Needed for owner references that block the owner's deletion: some Kubernetes clusters refuse them without this rule.
- apiGroups: [fairlead.dev]
  resources: [clusters/finalizers]
  verbs: [update]
# The operator deletes no Secrets. Some Kubernetes clusters permit a change of owner references, as for the Secrets of a
# retained Cluster, only with the verb delete.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch, delete]
{{- if .Values.certManager.enabled }}
- apiGroups: [cert-manager.io]
  resources: [certificates]
  verbs: [get, create, patch, delete]
{{- end }}
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch, delete]
# Each Cluster has one ConfigMap and one ServiceAccount for its whole life, which Kubernetes deletes with their owner.
- apiGroups: [""]
  resources: [configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch]
# The CronJob or Job of an EtcdBackup, which Kubernetes deletes with its owner.
- apiGroups: [batch]
  resources: [cronjobs, jobs]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims, pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [ingresses, networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes, tlsroutes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
# Shows whether the namespace of a Topic is being deleted. A Role permits this only for its own namespace.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
# After a restart, the operator continues the counts of existing Events. Events of StatefulSets contain the reasons why
# pods are refused.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [get, list, create, patch]
{{- end }}
