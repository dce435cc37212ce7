{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "nri-runc.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "nri-runc.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nri-runc.labels" -}}
{{ include "nri-runc.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "nri-runc.account" -}}
{{- .Values.serviceAccount.name | default (include "nri-runc.name" .) -}}
{{- end }}

{{- define "nri-runc.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{/* Whether the pods ask the API server anything. */}}
{{- define "nri-runc.asks" -}}
{{- if or (include "nri-runc.clusterRole" .) .Values.removal.enabled }}true{{ end -}}
{{- end }}

{{/* Whether the pods need permissions for nodes or Events. */}}
{{- define "nri-runc.clusterRole" -}}
{{- if or .Values.label.enabled .Values.report.conditions .Values.report.events }}true{{ end -}}
{{- end }}

{{/* What the program calls the engine. */}}
{{- define "nri-runc.engine" -}}
{{- if eq .Values.distribution "crio" }}crio{{ else }}containerd{{ end -}}
{{- end }}

{{/* The units of the engine, of which one is active on a node. */}}
{{- define "nri-runc.units" -}}
{{- $units := dict
  "crio" (list "crio")
  "k3s" (list "k3s" "k3s-agent")
  "rke2" (list "rke2-server" "rke2-agent")
  "k0s" (list "k0scontroller" "k0sworker")
  "microk8s" (list "snap.microk8s.daemon-containerd")
-}}
{{- .Values.restart.units | default (get $units .Values.distribution) | default (list "containerd") | toJson -}}
{{- end }}

{{/* The folder of k3s or RKE2. */}}
{{- define "nri-runc.data" -}}
{{- $usual := printf "/var/lib/rancher/%s" .Values.distribution -}}
{{- .Values.dataDir | default $usual | trimSuffix "/" -}}
{{- end }}

{{/*
The folders of the node that the pod sees, each below /host, and why. `run` folders are followed: the engine
mounts its containers' file systems there, and a copy that the pod kept would keep them in use.
*/}}
{{- define "nri-runc.mounts" -}}
{{- $containerd := list
  (dict "name" "engine-config" "path" "/etc/containerd" "type" "DirectoryOrCreate" "why" "The engine's configuration, to which the handler is added.")
  (dict "name" "engine-run" "path" "/run/containerd" "type" "Directory" "follow" true "readOnly" true "why" "The engine's socket, to ask it for the handler, and which containers use nri-runc.")
-}}
{{- $rancher := list
  (dict "name" "engine-config" "path" (printf "%s/agent/etc/containerd" (include "nri-runc.data" .)) "type" "Directory" "why" "The engine's configuration and its template, to which the handler is added.")
  (dict "name" "engine-run" "path" "/run/k3s/containerd" "type" "Directory" "follow" true "readOnly" true "why" "The engine's socket, to ask it for the handler, and which containers use nri-runc.")
-}}
{{- $all := dict
  "k3s" $rancher
  "rke2" $rancher
  "crio" (list
    (dict "name" "engine-config" "path" "/etc/crio" "type" "DirectoryOrCreate" "why" "The engine's configuration, to which the handler is added.")
    (dict "name" "engine-run" "path" "/run/crio" "type" "Directory" "follow" true "readOnly" true "why" "The engine's socket, to ask it for the handler.")
    (dict "name" "processes" "path" "/proc" "type" "Directory" "readOnly" true "why" "The command lines of conmon: which containers use nri-runc. They are readable for every process of the node."))
  "k0s" (list
    (dict "name" "engine-config" "path" "/etc/k0s" "type" "Directory" "why" "The engine's configuration, to which the handler is added.")
    (dict "name" "engine-run" "path" "/run/k0s" "type" "Directory" "follow" true "readOnly" true "why" "The engine's socket, to ask it for the handler, and which containers use nri-runc."))
  "microk8s" (list
    (dict "name" "engine-config" "path" "/var/snap/microk8s/current/args" "type" "Directory" "why" "The template of the engine's configuration, to which the handler is added.")
    (dict "name" "engine-run" "path" "/var/snap/microk8s/common/run" "type" "Directory" "follow" true "readOnly" true "why" "The engine's socket, to ask it for the handler, and which containers use nri-runc."))
  "flatcar" (concat $containerd (list
    (dict "name" "engine-default" "path" "/usr/share/containerd" "type" "Directory" "readOnly" true "why" "The configuration that is copied, because it is on a read-only file system.")
    (dict "name" "os-release" "path" "/usr/lib/os-release" "type" "File" "readOnly" true "why" "Whether this is a Flatcar.")
    (dict "name" "units" "path" "/etc/systemd/system" "type" "Directory" "why" "The file that makes the engine's unit use the copy.")))
-}}
{{- $common := list
  (dict "name" "program" "path" .Values.installDir "type" "DirectoryOrCreate" "why" "The program, which the engine calls on the node.")
  (dict "name" "config" "path" "/etc/nri-runc" "type" "DirectoryOrCreate" "why" "The node's configuration of nri-runc.")
  (dict "name" "records" "path" "/var/lib/nri-runc" "type" "DirectoryOrCreate" "why" "What was written on the node and what was there before: the removal needs it.")
  (dict "name" "daemon" "path" "/run/nri-runc" "type" "DirectoryOrCreate" "why" "The daemon's socket, so that it goes on as the new program, and its records: which containers use nri-runc.")
-}}
{{- $systemd := list -}}
{{- if .Values.restart.systemd -}}
{{- $systemd = list (dict "name" "systemd" "path" "/run/systemd" "type" "Directory" "readOnly" true "why" "systemd's private socket, over which the engine is restarted. The folder, because systemd makes the socket anew when it re-executes itself.") -}}
{{- end -}}
{{- concat (get $all .Values.distribution | default $containerd) $common $systemd | toJson -}}
{{- end }}

{{/* Seconds: the wait for containers, then an engine that stops, starts and answers, then the daemon. */}}
{{- define "nri-runc.grace" -}}
{{- if .Values.removal.enabled }}{{ add .Values.removal.waitSeconds 600 }}{{ else }}30{{ end -}}
{{- end }}
