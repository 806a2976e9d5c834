{{/* The operator's rights wherever it acts on datasets: only those that it uses (charts/tests/test_chart_rights.py).
It lists and watches, and never gets a single object. An apply needs patch, and create if the object does not exist.
With a gateway, it can only create Secrets: those with the key of a dataset's passwords. Without a gateway, it cannot
get or list Secrets either, but the answer to a patch shows what the Secret holds. */}}
{{- define "lookupdb.rules" -}}
- apiGroups: [lookupdb.dev]
  resources: [lookupdatasets]
  verbs: [list, watch]
- apiGroups: [lookupdb.dev]
  resources: [lookupdatasets/status]
  verbs: [update]
# For owner references that block the owner's deletion, where OwnerReferencesPermissionEnforcement is on (OpenShift).
- apiGroups: [lookupdb.dev]
  resources: [lookupdatasets/finalizers]
  verbs: [update]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets, deployments, daemonsets]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch, delete]
{{- if not .Values.gateway.enabled }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, patch]
{{- else if .Values.shardPasswords.enabled }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
{{- end }}

{{/* The operator, as the subject of a binding. */}}
{{- define "lookupdb.subjects" -}}
- kind: ServiceAccount
  name: {{ include "lookupdb.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
