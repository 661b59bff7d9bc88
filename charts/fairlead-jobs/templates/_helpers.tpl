{{- define "fairlead-jobs.name" -}}
{{- default .Release.Name .Values.name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "fairlead-jobs.selectorLabels" -}}
app.kubernetes.io/name: fairlead-jobs
app.kubernetes.io/instance: {{ include "fairlead-jobs.name" . | quote }}
{{- end }}

{{- define "fairlead-jobs.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "fairlead-jobs.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: fairlead
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fairlead-jobs.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "fairlead-jobs.name" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is required if serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "fairlead-jobs.image" -}}
{{- printf "%s:%s" .Values.image.repository .Values.image.tag }}
{{- with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "fairlead-jobs.driverService" -}}
{{ include "fairlead-jobs.name" . }}-driver
{{- end }}

{{/* The only pod of the StatefulSet. */}}
{{- define "fairlead-jobs.driverPod" -}}
{{ include "fairlead-jobs.name" . }}-0
{{- end }}

{{/* The claim of the checkpoint; empty if the checkpoint is on an object store. */}}
{{- define "fairlead-jobs.claim" -}}
{{- if .Values.checkpoint.existingClaim }}
{{- .Values.checkpoint.existingClaim }}
{{- else if not .Values.checkpoint.uri }}
{{- printf "checkpoint-%s" (include "fairlead-jobs.driverPod" .) }}
{{- end }}
{{- end }}

{{- define "fairlead-jobs.master" -}}
{{- if .Values.executors.count -}}
k8s://https://kubernetes.default.svc
{{- else -}}
local[{{ .Values.driver.cores }}]
{{- end }}
{{- end }}

{{- define "fairlead-jobs.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "fairlead-jobs.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
{{- end }}

{{/* Volumes that driver and executors write to, including the checkpoint, in which executors keep state. */}}
{{- define "fairlead-jobs.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
- name: work
  mountPath: /var/lib/fairlead
{{- if include "fairlead-jobs.claim" . }}
- name: checkpoint
  mountPath: /checkpoint
{{- end }}
{{- if or .Values.credentials.secretName .Values.credentials.configMapName }}
- name: fairlead
  mountPath: /var/run/secrets/fairlead
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The token and the authorities of a User: from its Secret, or a token of the job's service account. */}}
{{- define "fairlead-jobs.credentials" -}}
{{- with .Values.credentials }}
{{- if and .secretName .configMapName }}
{{- fail "credentials.secretName and credentials.configMapName exclude each other" }}
{{- end }}
{{- if .secretName }}
- name: fairlead
  secret:
    secretName: {{ .secretName | quote }}
    defaultMode: 0440
{{- else if .configMapName }}
- name: fairlead
  projected:
    defaultMode: 0440
    sources:
      - serviceAccountToken:
          path: token
          audience: {{ required "credentials.audience is required with credentials.configMapName" .audience | quote }}
          expirationSeconds: 3600
      - configMap:
          name: {{ .configMapName | quote }}
          items:
            - key: ca.crt
              path: ca.crt
{{- end }}
{{- end }}
{{- end }}

{{- define "fairlead-jobs.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.tmpSize }}
- name: work
  emptyDir:
    sizeLimit: {{ .Values.tmpSize }}
{{- with include "fairlead-jobs.credentials" . | trim }}
{{ . }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Spark's settings, in the format of its configuration file; the value `conf` has the user's settings. */}}
{{- define "fairlead-jobs.sparkDefaults" -}}
spark.driver.memory {{ .Values.driver.memory }}
spark.python.unix.domain.socket.enabled true
# The user interface does not authenticate its users, so it is read-only.
spark.ui.killEnabled false
# A progress bar would clutter the log.
spark.ui.showConsoleProgress false
{{- if .Values.executors.count }}
spark.driver.host {{ printf "%s.%s.%s.svc" (include "fairlead-jobs.driverPod" .) (include "fairlead-jobs.driverService" .) .Release.Namespace }}
spark.driver.bindAddress 0.0.0.0
# Otherwise executors would connect to the bound address.
spark.kubernetes.executor.useDriverPodIP false
spark.driver.port 7078
spark.blockManager.port 7079
spark.executor.instances {{ .Values.executors.count }}
spark.executor.cores {{ .Values.executors.cores }}
spark.executor.memory {{ .Values.executors.memory }}
spark.executor.memoryOverhead {{ .Values.executors.memoryOverhead }}
{{- with .Values.executors.requestCores }}
spark.kubernetes.executor.request.cores {{ . }}
{{- end }}
spark.kubernetes.namespace {{ .Release.Namespace }}
spark.kubernetes.driver.pod.name {{ include "fairlead-jobs.driverPod" . }}
spark.kubernetes.container.image {{ include "fairlead-jobs.image" . }}
spark.kubernetes.container.image.pullPolicy {{ .Values.image.pullPolicy }}
spark.kubernetes.executor.podTemplateFile /etc/fairlead/spark/executor.yaml
spark.kubernetes.executor.podTemplateContainerName executor
{{- if .Values.credentials.configMapName }}
# Executors call the brokers as the driver does. The account's token for the API server is not mounted.
spark.kubernetes.authenticate.executor.serviceAccountName {{ include "fairlead-jobs.serviceAccountName" . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Settings for Prometheus, as in docs/how-to/observability.md. Without the namespace, the names of metrics
     would contain the application's id, which changes at each start. */}}
{{- define "fairlead-jobs.metrics" -}}
spark.ui.enabled: "true"
spark.ui.prometheus.enabled: "true"
spark.sql.streaming.metricsEnabled: "true"
spark.metrics.namespace: fairlead
spark.metrics.conf.*.sink.prometheusServlet.class: org.apache.spark.metrics.sink.PrometheusServlet
spark.metrics.conf.*.sink.prometheusServlet.path: /metrics/prometheus
{{- end }}

{{/* Settings that override all other settings, including those of a program on one machine, which has no user interface.
     The first run on a checkpoint fixes the number of state partitions permanently. */}}
{{- define "fairlead-jobs.conf" -}}
{{- $cores := .Values.driver.cores }}
{{- with .Values.executors.count }}
{{- $cores = mul . $.Values.executors.cores }}
{{- end }}
{{- $metrics := ternary (include "fairlead-jobs.metrics" . | fromYaml) dict .Values.metrics.enabled }}
{{- toYaml (merge (deepCopy .Values.conf) (dict "spark.sql.shuffle.partitions" (toString $cores)) $metrics) }}
{{- end }}
