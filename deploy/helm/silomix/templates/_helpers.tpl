{{- define "silomix.labels" -}}
{{ include "silomix.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "silomix.selector" -}}
app.kubernetes.io/name: silomix
app.kubernetes.io/component: {{ .Values.kind }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The ports that others connect to, by name. */ -}}
{{- define "silomix.ports" -}}
{{- if eq .Values.kind "mix" -}}
{{- $ports := dict "mix" .Values.ports.mix -}}
{{- if .Values.ports.metrics }}{{ $_ := set $ports "metrics" .Values.ports.metrics }}{{ end -}}
{{- toYaml $ports -}}
{{- else if eq .Values.kind "authority" -}}
{{- toYaml (dict "authority" .Values.ports.authority) -}}
{{- else -}}
{{- toYaml (dict "fleet" .Values.ports.fleet "channel" .Values.ports.channel) -}}
{{- end -}}
{{- end }}

{{- define "silomix.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "silomix.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
