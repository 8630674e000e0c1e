{{/* The name of every object: the release's, which names the chart. */}}
{{- define "revgate.fullname" -}}
{{- if contains "revgate" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-revgate{{ end }}
{{- end }}

{{- define "revgate.labels" -}}
app.kubernetes.io/name: revgate
app.kubernetes.io/part-of: revgate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "revgate.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* The port of an address. */}}
{{- define "revgate.port" -}}{{ regexFind "[0-9]+$" . }}{{- end }}

{{/* The ports of the listeners, as a YAML list of {name, port, protocol}. Names and addresses that are not set are the
agent's defaults. */}}
{{- define "revgate.listenerPorts" -}}
{{- range .Values.config.agent.listeners }}
{{- $picker := hasKey . "endpointPicker" }}
{{- $name := ternary "endpoint-picker" (ternary "pair" (.role | default "") (hasKey . "pair")) $picker }}
{{- $protocol := ternary "https" (ternary "kubernetes.io/h2c" "http" $picker) (hasKey . "tls") }}
- name: {{ .name | default $name }}
  port: {{ include "revgate.port" (.address | default "0.0.0.0:9002") }}
  protocol: {{ $protocol }}
{{- end }}
{{- end }}

{{/* The namespaces that the configuration names, as a YAML list: the agent reads these and no other. */}}
{{- define "revgate.namespaces" -}}
{{- $found := list }}
{{- range .Values.config.agent.sets }}
{{- $found = concat $found (.namespaces | default list) }}
{{- end }}
{{- range .Values.config.agent.vips }}
{{- with .service }}{{ $found = append $found .namespace }}{{ end }}
{{- end }}
{{- if not $found }}
{{- fail "config.agent.sets[].namespaces is empty: name the namespaces that the agent may read" }}
{{- end }}
{{- $found | uniq | sortAlpha | toYaml }}
{{- end }}

{{/* What the agent and the step that detaches it have in common. */}}
{{- define "revgate.securityContext" -}}
runAsUser: 0
runAsGroup: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
{{- with .Values.appArmorProfile }}
appArmorProfile: {{- toYaml . | nindent 2 }}
{{- end }}
capabilities:
  drop: [ALL]
  add: [BPF, NET_ADMIN]
{{- end }}

{{- define "revgate.volumeMounts" -}}
- name: config
  mountPath: /etc/revgate
  readOnly: true
- name: bpffs
  mountPath: {{ .Values.config.agent.kernel.bpffs }}
  mountPropagation: HostToContainer
- name: cgroup
  mountPath: /host/sys/fs/cgroup
  readOnly: true
  recursiveReadOnly: IfPossible
{{- end }}
