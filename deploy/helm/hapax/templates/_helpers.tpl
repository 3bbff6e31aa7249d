{{- define "hapax.name" -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{- end }}

{{- define "hapax.selector" -}}
app.kubernetes.io/name: hapax
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hapax.labels" -}}
{{ include "hapax.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "hapax.pod" -}}
metadata:
  labels:
    {{- include "hapax.selector" . | nindent 4 }}
  annotations:
    checksum/settings: {{ include "hapax.settings" . | sha256sum }}
    {{- with .Values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  automountServiceAccountToken: false
  # A service named hapax would put HAPAX_PORT and the like into the environment.
  enableServiceLinks: false
  # The lame duck's time, that of requests in flight, and half a minute to give back what is held.
  terminationGracePeriodSeconds: {{ add .Values.lameDuckSeconds .Values.drainSeconds 40 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    fsGroup: 65532
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: {{- include "hapax.selector" $ | nindent 10 }}
    {{- end }}
  containers:
    - name: hapax
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: [serve, --config, /etc/hapax/hapax.yaml]
      env:
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        - name: HAPAX_ADVERTISE
          value: "$(POD_IP):8080"
        {{- if .Values.store.passwordSecret.name }}
        - name: HAPAX_STORE_PASSWORD
          valueFrom:
            secretKeyRef: {name: {{ .Values.store.passwordSecret.name }}, key: {{ .Values.store.passwordSecret.key }}}
        {{- end }}
      {{- with .Values.envFrom }}
      envFrom: {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - {name: http, containerPort: 8080}
        - {name: resp, containerPort: 6380}
      # Not ready at the first answer of that kind, so that a pod that stops gets no new connections
      # long before its lame duck's time is over. That takes the place of a preStop hook.
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 1
      # It answers while the process lives, however the store is: a restart would not mend that.
      livenessProbe:
        httpGet: {path: /healthz, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      startupProbe:
        httpGet: {path: /healthz, port: http}
        periodSeconds: 2
        timeoutSeconds: 2
        failureThreshold: 60
      resources: {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: settings, mountPath: /etc/hapax, readOnly: true}
        - {name: data, mountPath: /var/lib/hapax}
  volumes:
    - name: settings
      configMap: {name: {{ include "hapax.name" . }}}
    {{- if .Values.store.url }}
    # A shared store remembers everything, and nodes whose disks vanish are spoken for by those that live.
    - name: data
      emptyDir: {}
    {{- end }}
{{- end }}

{{- define "hapax.settings" -}}
{{- $fixed := dict "http" "0.0.0.0:8080" "resp" "0.0.0.0:6380" "data" "/var/lib/hapax" "lame_duck" (printf "%vs" .Values.lameDuckSeconds) "drain" (printf "%vs" .Values.drainSeconds) "allow_unauthenticated" .Values.allowUnauthenticated "hosts" (include "hapax.hosts" .) -}}
{{- if .Values.store.url }}{{ $_ := set $fixed "store" .Values.store.url }}{{ end -}}
{{- toYaml (mergeOverwrite (deepCopy .Values.settings) $fixed) -}}
{{- end }}

{{- /* The names by which pods reach the service, without which requests that show no token are refused. */ -}}
{{- define "hapax.hosts" -}}
{{- $name := include "hapax.name" . -}}
{{- $space := printf "%s.%s" $name .Release.Namespace -}}
{{- concat (list $name $space (printf "%s.svc" $space) (printf "%s.svc.cluster.local" $space)) .Values.hosts | join "," -}}
{{- end }}
