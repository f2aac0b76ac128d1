{{/*
A DaemonSet of a command that changes cards: privileged, because NVML changes nothing for anybody else, and in the
host's pid namespace, because it has to see every process that uses a card. With its account: it follows the label of its
own node.
Takes a dict: root (the chart's), name, command, env, mounts and volumes (lists), resources, rules (of its account, at the API
server; without them it has no token and sees nothing of the kubelet's), and which nodes: selector (labels), label (one that a
node has), or those of the agents.
*/}}
{{- define "gpu-device-plugin.nodeTool" -}}
{{- $root := .root }}
{{- with $root }}
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ include "gpu-device-plugin.fullname" . }}-{{ $.name }}
  namespace: {{ include "gpu-device-plugin.namespace" . | quote }}
  labels:
    {{- include "gpu-device-plugin.labels" . | nindent 4 }}
spec:
  selector:
    matchLabels: &selector
      app.kubernetes.io/name: {{ include "gpu-device-plugin.name" . }}-{{ $.name }}
      app.kubernetes.io/instance: {{ .Release.Name | quote }}
  updateStrategy:
    # The next one begins when this one has undone what it did.
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 1
  template:
    metadata:
      labels: *selector
      {{- if .Values.cdi.managementAnnotation }}
      annotations:
        {{ printf "nvidia.cdi.k8s.io/container.%s" $.name }}: management.nvidia.com/gpu=all
      {{- end }}
    spec:
      {{- if $.rules }}
      serviceAccountName: {{ include "gpu-device-plugin.fullname" . }}-{{ $.name }}
      {{- end }}
      automountServiceAccountToken: {{ not (empty $.rules) }}
      enableServiceLinks: false
      hostPID: true
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.runtimeClassName }}
      runtimeClassName: {{ . | quote }}
      {{- end }}
      {{- with .Values.priorityClassName }}
      priorityClassName: {{ . | quote }}
      {{- end }}
      {{- if or $.label $.selector }}
      {{- $terms := list (dict "matchExpressions" (list (dict "key" $.label "operator" "Exists"))) }}
      {{- $required := dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) }}
      {{- $affinity := ternary (dict "nodeAffinity" $required) dict (hasKey $ "label") }}
      {{- include "gpu-device-plugin.placement" (dict "root" . "selector" ($.selector | default dict) "affinity" $affinity) | nindent 6 }}
      {{- else }}
      {{- include "gpu-device-plugin.agentPlacement" . | nindent 6 }}
      {{- end }}
      {{- with include "gpu-device-plugin.tolerations" . }}
      {{- nindent 6 . }}
      {{- end }}
      terminationGracePeriodSeconds: 60
      containers:
        - name: {{ $.name | quote }}
          image: {{ include "gpu-device-plugin.image" . | quote }}
          imagePullPolicy: {{ .Values.image.pullPolicy | quote }}
          command: {{ toJson $.command }}
          env:
            - name: NODE_NAME
              valueFrom:
                fieldRef:
                  fieldPath: spec.nodeName
            - name: GPU_DEVICE_PLUGIN_KUBELET_DIR
              value: {{ .Values.kubeletDir | quote }}
            {{- if .Values.simulate.profile }}
            - name: GPU_DEVICE_PLUGIN_NVML_LIBRARY
              value: /run/gpu-device-plugin/simulator/libnvidia-ml.so.1
            {{- else }}
            {{- if not .Values.cdi.managementAnnotation }}
            - name: NVIDIA_VISIBLE_DEVICES
              value: all
            - name: NVIDIA_DRIVER_CAPABILITIES
              value: compute,utility
            {{- end }}
            {{- with .Values.driverRoot }}
            - name: GPU_DEVICE_PLUGIN_NVML_LIBRARY
              value: {{ printf "/driver-root/%s" $root.Values.nvmlLibrary | quote }}
            {{- end }}
            {{- end }}
            {{- with $.env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          securityContext:
            privileged: true
            # The kubelet's socket and the directories of the node are root's.
            runAsUser: 0
            runAsGroup: 0
            readOnlyRootFilesystem: true
          resources:
            {{- toYaml $.resources | nindent 12 }}
          volumeMounts:
            {{- if $.rules }}
            - name: device-plugins
              mountPath: {{ printf "%s/device-plugins" .Values.kubeletDir | quote }}
              readOnly: true
            - name: pod-resources
              mountPath: {{ printf "%s/pod-resources" .Values.kubeletDir | quote }}
              readOnly: true
            - name: pods
              mountPath: {{ printf "%s/pods" .Values.kubeletDir | quote }}
              readOnly: true
            {{- end }}
            {{- if .Values.simulate.profile }}
            - name: simulator
              mountPath: /run/gpu-device-plugin/simulator
            {{- else if .Values.driverRoot }}
            - name: driver-root
              mountPath: /driver-root
              readOnly: true
            {{- end }}
            {{- with $.mounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        {{- if $.rules }}
        - name: device-plugins
          hostPath:
            path: /var/lib/kubelet/device-plugins
            type: Directory
        - name: pod-resources
          hostPath:
            path: {{ printf "%s/pod-resources" .Values.kubeletDir | quote }}
            type: Directory
        # A pod that has ended still stands in the kubelet's checkpoint, but has no directory.
        - name: pods
          hostPath:
            path: {{ printf "%s/pods" .Values.kubeletDir | quote }}
            type: Directory
        {{- end }}
        {{- if .Values.simulate.profile }}
        - name: simulator
          hostPath:
            path: /run/gpu-device-plugin/simulator
            type: DirectoryOrCreate
        {{- else if .Values.driverRoot }}
        - name: driver-root
          hostPath:
            path: {{ .Values.driverRoot | quote }}
            type: Directory
        {{- end }}
        {{- with $.volumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- if $.rules }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "gpu-device-plugin.fullname" . }}-{{ $.name }}
  namespace: {{ include "gpu-device-plugin.namespace" . | quote }}
  labels:
    {{- include "gpu-device-plugin.labels" . | nindent 4 }}
{{- if .Values.rbac.create }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ include "gpu-device-plugin.fullname" . }}-{{ $.name }}
  labels:
    {{- include "gpu-device-plugin.labels" . | nindent 4 }}
rules:
  {{- toYaml $.rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "gpu-device-plugin.fullname" . }}-{{ $.name }}
  labels:
    {{- include "gpu-device-plugin.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ include "gpu-device-plugin.fullname" . }}-{{ $.name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "gpu-device-plugin.fullname" . }}-{{ $.name }}
    namespace: {{ include "gpu-device-plugin.namespace" . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
