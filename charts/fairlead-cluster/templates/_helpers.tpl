{{- define "fairlead-cluster.name" -}}
{{- default .Release.Name .Values.name }}
{{- end }}

{{- define "fairlead-cluster.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: fairlead
app.kubernetes.io/instance: {{ include "fairlead-cluster.name" . | quote }}
app.kubernetes.io/part-of: fairlead
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fairlead-cluster.secure" -}}
{{- if eq "Enforce" (dig "security" "mode" "Open" .Values.cluster) }}true{{ end }}
{{- end }}

{{- define "fairlead-cluster.bootstrap" -}}
{{ eq "Required" (dig "security" "tls" "mode" "Off" .Values.cluster) | ternary "https" "http" }}://{{ include "fairlead-cluster.name" . }}-bootstrap.{{ .Release.Namespace }}.svc:9520
{{- end }}
