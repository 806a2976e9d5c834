{{/* What the operator may do wherever it acts on datasets. No Secret is ever read there. */}}
{{- define "lookupdb.rules" -}}
- apiGroups: [lookupdb.dev]
  resources: [lookupdatasets]
  verbs: [get, list, watch]
- apiGroups: [lookupdb.dev]
  resources: [lookupdatasets/status]
  verbs: [get, patch, update]
- apiGroups: [lookupdb.dev]
  resources: [lookupdatasets/finalizers]
  verbs: [update]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets, deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [get, list, create, patch]
{{- end }}

{{/* The operator, as the subject of a binding. */}}
{{- define "lookupdb.subjects" -}}
- kind: ServiceAccount
  name: {{ include "lookupdb.serviceAccount" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
