{{/* Names, labels, and common parts of pods. */}}

{{- define "lookupdb.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "lookupdb.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{/* For objects without a namespace: two releases in two namespaces may have the same name. */}}
{{- define "lookupdb.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "lookupdb.fullname" .) }}
{{- end }}

{{- define "lookupdb.store" -}}
{{- printf "%s-store" (include "lookupdb.fullname" .) }}
{{- end }}

{{- define "lookupdb.gateway" -}}
{{- printf "%s-gateway" (include "lookupdb.fullname" .) }}
{{- end }}

{{- define "lookupdb.console" -}}
{{- printf "%s-console" (include "lookupdb.fullname" .) }}
{{- end }}

{{- define "lookupdb.gatewayUrl" -}}
{{- printf "http://%s.%s.svc:7071" (include "lookupdb.gateway" .) .Release.Namespace }}
{{- end }}

{{/* NAMESPACE/RELEASE: the owner of datasets, and the audience of tokens. */}}
{{- define "lookupdb.identity" -}}
{{- printf "%s/%s" .Release.Namespace .Release.Name }}
{{- end }}

{{- define "lookupdb.livingList" -}}
{{- printf "%s-living" (include "lookupdb.fullname" .) }}
{{- end }}

{{- define "lookupdb.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "lookupdb.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "lookupdb.gatewayServiceAccount" -}}
{{- with .Values.gateway.serviceAccount }}
{{- if .create }}
{{- default (include "lookupdb.gateway" $) .name }}
{{- else }}
{{- default "default" .name }}
{{- end }}
{{- end }}
{{- end }}

{{/* Arguments: root, component. Never with a version: selectors cannot change. */}}
{{- define "lookupdb.selector" -}}
app.kubernetes.io/name: {{ include "lookupdb.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Arguments: root, component. */}}
{{- define "lookupdb.labels" -}}
{{ include "lookupdb.selector" . }}
app.kubernetes.io/part-of: lookupdb
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Arguments: root, image (repository, tag, digest), tag (when it has none). global.imageRegistry goes before a
repository that does not begin with a registry of its own: localhost, or a name with a dot or a port, as for docker. */}}
{{- define "lookupdb.imageOf" -}}
{{- $registry := .root.Values.global.imageRegistry }}
{{- if and $registry (not (regexMatch "^(localhost|[^/]*[.:][^/]*)/" .image.repository)) -}}
{{ $registry }}/
{{- end -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ default .tag .image.tag }}
{{- end }}
{{- end }}

{{- define "lookupdb.image" -}}
{{- include "lookupdb.imageOf" (dict "root" . "image" .Values.image "tag" .Chart.AppVersion) }}
{{- end }}

{{/* Names, with commas between them: the chart's own, then those of all charts. */}}
{{- define "lookupdb.pullSecrets" -}}
{{- $names := list }}
{{- range concat .Values.imagePullSecrets (default list .Values.global.imagePullSecrets) }}
{{- if kindIs "string" . }}
{{- $names = append $names . }}
{{- else }}
{{- $names = append $names .name }}
{{- end }}
{{- end }}
{{- $names | uniq | join "," }}
{{- end }}

{{- define "lookupdb.storeUrl" -}}
{{- if .Values.store.embedded.enabled -}}
s3://lookupdb
{{- else -}}
{{ .Values.store.url }}
{{- end }}
{{- end }}

{{- define "lookupdb.storeSecret" -}}
{{- if .Values.store.embedded.enabled -}}
{{ include "lookupdb.store" . }}
{{- else -}}
{{ .Values.store.secretName }}
{{- end }}
{{- end }}

{{/* The Secret that the operator reads to create the embedded store's, or to copy it without a gateway. */}}
{{- define "lookupdb.operatorSecret" -}}
{{- if or .Values.store.embedded.enabled (not .Values.gateway.enabled) }}
{{- include "lookupdb.storeSecret" . }}
{{- end }}
{{- end }}

{{/* The Secret with the key of shard servers' passwords, which the operator makes. */}}
{{- define "lookupdb.shardKeySecret" -}}
{{- if .Values.shardPasswords.enabled }}
{{- include "lookupdb.fullname" . }}-shard-key
{{- end }}
{{- end }}

{{/* The store's environment that is not secret, as a map. */}}
{{- define "lookupdb.storeEnv" -}}
{{- $env := dict }}
{{- if .Values.store.embedded.enabled }}
{{- $url := printf "http://%s.%s.svc:7070" (include "lookupdb.store" .) .Release.Namespace }}
{{- $env = dict "AWS_ENDPOINT_URL" $url "AWS_REGION" "us-east-1" "AWS_ALLOW_HTTP" "true" }}
{{- end }}
{{- range $name, $value := merge (deepCopy .Values.store.env) $env }}
{{ $name }}: {{ $value | toString | quote }}
{{- end }}
{{- end }}

{{/* Environment variables of processes that export traces, as a list. */}}
{{- define "lookupdb.tracingEnv" -}}
{{- with .Values.tracing }}
{{- if .endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
{{- with .headersSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ . }}, key: headers, optional: true}}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The same for pods of datasets: with the sampler, which is for routers. */}}
{{- define "lookupdb.datasetTracingEnv" -}}
{{- include "lookupdb.tracingEnv" . }}
{{- with .Values.tracing }}
{{- if and .endpoint .sampler }}
- name: OTEL_TRACES_SAMPLER
  value: {{ .sampler }}
{{- with .samplerArg }}
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "lookupdb.podSecurity" -}}
runAsNonRoot: true
{{- range $name := list "runAsUser" "runAsGroup" }}
{{- with index $.Values.podSecurity $name }}
{{ $name }}: {{ int64 . }}
{{- end }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "lookupdb.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Arguments: root, component, values (podAnnotations, podLabels): a pod template's metadata. */}}
{{- define "lookupdb.podMetadata" -}}
labels:
  {{- mergeOverwrite (deepCopy .values.podLabels) (include "lookupdb.labels" . | fromYaml) | toYaml | nindent 2 }}
{{- with .values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Arguments: root, values (nodeSelector, tolerations, …): a pod's scheduling and pull secrets. */}}
{{- define "lookupdb.podPlace" -}}
{{- with include "lookupdb.pullSecrets" .root }}
imagePullSecrets:
  {{- range splitList "," . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* In NetworkPolicies: the namespaces that may have datasets. */}}
{{- define "lookupdb.datasetNamespaces" -}}
{{- $selector := dict }}
{{- with .Values.watchNamespaces }}
{{- $selector = dict "matchExpressions" (list (dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" .)) }}
{{- end }}
{{- toJson $selector }}
{{- end }}

{{/* In NetworkPolicies: the pods of datasets that need the store. */}}
{{- define "lookupdb.datasetPods" -}}
podSelector:
  matchLabels:
    app.kubernetes.io/managed-by: lookupdb-operator
  matchExpressions:
    - {key: app.kubernetes.io/component, operator: In, values: [builder, executor, shard]}
{{- end }}

{{/* In NetworkPolicies: the pods of `kubectl lookupdb diff` and `load`, which read generations. */}}
{{- define "lookupdb.pluginPods" -}}
podSelector:
  matchLabels:
    app.kubernetes.io/name: lookupdb
  matchExpressions:
    - {key: app.kubernetes.io/component, operator: In, values: [diff, load]}
{{- end }}

{{/* In NetworkPolicies: pods that keep datasets' generations by `lookupdb sync`. */}}
{{- define "lookupdb.syncPods" -}}
podSelector:
  matchExpressions:
    - {key: lookupdb.dev/sync, operator: Exists}
{{- end }}

{{/* In NetworkPolicies of datasets: the pods of a component of this release. Arguments: root, component. */}}
{{- define "lookupdb.peer" -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" .root.Release.Namespace) }}
{{- dict "namespaceSelector" $namespace "podSelector" (dict "matchLabels" (include "lookupdb.selector" . | fromYaml)) | toJson }}
{{- end }}

{{/* podSecurity without null members, for the operator. */}}
{{- define "lookupdb.podSecurityChosen" -}}
{{- $chosen := dict }}
{{- range $name := list "runAsUser" "runAsGroup" "fsGroup" }}
{{- with index $.Values.podSecurity $name }}
{{- $_ := set $chosen $name (int64 .) }}
{{- end }}
{{- end }}
{{- $chosen | toJson }}
{{- end }}

{{/* Values that exclude each other, which the schema cannot say. */}}
{{- define "lookupdb.validate" -}}
{{- $store := .Values.store }}
{{- if and $store.url $store.embedded.enabled }}
{{- fail (printf "store.url is %q, but the embedded store is enabled too: only one of them can hold generations. Set store.embedded.enabled=false to use the bucket, or remove store.url." $store.url) }}
{{- end }}
{{- if not (or $store.url $store.embedded.enabled) }}
{{- fail "there is no store: set store.url (and store.secretName, a Secret with its credentials) to your bucket, or store.embedded.enabled=true." }}
{{- end }}
{{- if and $store.secretName $store.embedded.enabled }}
{{- fail (printf "store.secretName is %q, but the embedded store makes its own credentials. Set store.url and store.embedded.enabled=false to use your bucket, or remove store.secretName." $store.secretName) }}
{{- end }}
{{- if and .Values.gateway.enabled $store.embedded.enabled (eq .Values.gateway.reads "redirect") }}
{{- fail "gateway.reads is \"redirect\", but the embedded store answers only the gateway and the sweep: shard pods cannot be sent to it. Set gateway.reads to \"stream\" or remove it." }}
{{- end }}
{{- if and .Values.gateway.enabled (eq (include "lookupdb.gatewayServiceAccount" .) (include "lookupdb.serviceAccount" .)) (or .Values.gateway.serviceAccount.create .Values.serviceAccount.create) }}
{{- fail (printf "gateway.serviceAccount.name and serviceAccount.name are both %q: the gateway, which pods of every namespace use, would have the operator's rights. Give one of them another name." (include "lookupdb.serviceAccount" .)) }}
{{- end }}
{{- if and .Values.console.enabled (eq .Values.console.access "Proxy") (not .Values.console.proxy.secretName) }}
{{- fail "console.access is \"Proxy\", but console.proxy.secretName is empty: anyone who reaches the console could claim to be the proxy. Create a Secret with a long `password`, which the proxy sends, and name it." }}
{{- end }}
{{- end }}

{{/* An alert's expression for two burn rates, each over a long and a short window: (list RATIO OBJECTIVE FACTOR LONG SHORT FACTOR LONG SHORT). */}}
{{- define "lookupdb.burn" -}}
{{- $ratio := printf "dataset:lookupdb_%s:ratio_rate" (index . 0) }}
{{- $budget := printf "(100 - %v) / 100" (index . 1).objective }}
{{- $pair := `%[1]s%[4]s > %[3]s * %[2]s and %[1]s%[5]s > %[3]s * %[2]s` }}
{{- printf $pair $ratio $budget (index . 2) (index . 3) (index . 4) }} or {{ printf $pair $ratio $budget (index . 5) (index . 6) (index . 7) }}
{{- end }}
