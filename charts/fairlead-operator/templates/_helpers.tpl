{{/* Prefix of the names of objects. */}}
{{- define "fairlead-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Name of every namespaced object; only the name of the release if that name already contains the chart's name. */}}
{{- define "fairlead-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "fairlead-operator.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "fairlead-operator.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Name of cluster-scoped objects, which two releases with the same name in two namespaces must not share. */}}
{{- define "fairlead-operator.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "fairlead-operator.fullname" .) | trunc 110 | trimSuffix "-" }}
{{- end }}

{{/* Name of the RoleBindings of listed namespaces, and of their ClusterRole. It differs from the name of the Role, because a
binding cannot change its role. */}}
{{- define "fairlead-operator.bindingName" -}}
{{- printf "%s-listed" (include "fairlead-operator.clusterName" .) }}
{{- end }}

{{/* The name label ignores nameOverride, because NetworkPolicies of brokers and etcd select the operator's pods by it. */}}
{{- define "fairlead-operator.selectorLabels" -}}
app.kubernetes.io/name: fairlead-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "fairlead-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "fairlead-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: fairlead
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fairlead-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "fairlead-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is required if serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* Name of an image, made of repository, tag and digest. Nodes pull by digest; the tag is only informative. */}}
{{- define "fairlead-operator.imageName" -}}
{{- printf "%s:%s" .repository .tag }}
{{- with .digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "fairlead-operator.image" -}}
{{- include "fairlead-operator.imageName" .Values.image }}
{{- end }}

{{/* The operator's digest applies only if no other repository, tag or digest is set for the brokers' image. */}}
{{- define "fairlead-operator.brokerImage" -}}
{{- $own := .Values.brokerImage }}
{{- $digest := ternary $own.digest .Values.image.digest (or $own.repository $own.tag $own.digest | empty | not) }}
{{- include "fairlead-operator.imageName" (dict "repository" (default .Values.image.repository $own.repository) "tag" (default .Values.image.tag $own.tag) "digest" $digest) }}
{{- end }}

{{/* Namespaces for the operator to watch; empty for its own namespace, a star for all namespaces. */}}
{{- define "fairlead-operator.namespaces" -}}
{{- if eq .Values.watch.scope "all" -}}
*
{{- else if eq .Values.watch.scope "list" -}}
{{- join "," (required "watch.namespaces is required if watch.scope is list" .Values.watch.namespaces | uniq) }}
{{- end }}
{{- end }}

{{- define "fairlead-operator.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
{{- end }}

{{- define "fairlead-operator.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Definitions remain after the release is uninstalled, since deleting them would delete every Cluster and Topic. */}}
{{- define "fairlead-operator.crdAnnotations" -}}
helm.sh/resource-policy: keep
{{- with .Values.crds.annotations }}
{{ toYaml . }}
{{- end }}
{{- end }}
