package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/internal/server"
)

const top = ".."

// A serviceMonitor is what the chart uses of the Prometheus operator's.
type serviceMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port     string `json:"port"`
			Path     string `json:"path"`
			Interval string `json:"interval"`
		} `json:"endpoints"`
	} `json:"spec"`
}

// fits are the values that the chart is rendered with: those of the plain manifests,
// and one with everything.
func fits() map[string]map[string]any {
	all := map[string]map[string]any{}
	for _, v := range variants {
		all[v.file] = v.values
	}
	all["everything"] = map[string]any{
		"store":            map[string]any{"url": "redis://redis:6379/0"},
		"imagePullSecrets": []any{map[string]any{"name": "registry"}},
		"lameDuckSeconds":  20, "drainSeconds": 30, "allowUnauthenticated": false,
		"settings":       map[string]any{"max_tags": 12, "lame_duck": "1s", "tags": map[string]any{"orders": map[string]any{"step": 500}}},
		"envFrom":        []any{map[string]any{"secretRef": map[string]any{"name": "keys"}}},
		"service":        map[string]any{"type": "LoadBalancer", "annotations": map[string]any{"a": "b"}},
		"networkPolicy":  map[string]any{"from": []any{map[string]any{"ipBlock": map[string]any{"cidr": "10.0.0.0/8"}}}},
		"serviceMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}},
		"podAnnotations": map[string]any{"c": "d"}, "nodeSelector": map[string]any{"disk": "ssd"},
		"tolerations": []any{map[string]any{"key": "spot", "operator": "Exists"}},
		"affinity":    map[string]any{"nodeAffinity": map[string]any{}},
	}
	return all
}

// The chart is one that helm lint has nothing to say against.
func TestLint(t *testing.T) {
	for name, values := range fits() {
		for _, m := range lint.All(filepath.Join(top, "helm", "hapax"), values, "default", true).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %s", name, m)
			}
		}
	}
}

// The manifests in the tree are what the chart renders to.
func TestManifestsAreFresh(t *testing.T) {
	for _, v := range variants {
		want, err := manifests(top, v.values)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(top, "kubernetes", v.file))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("kubernetes/%s is not what the chart renders to: run make manifests", v.file)
		}
	}
}

// The chart's version is the release's.
func TestVersion(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top, "helm", "hapax", "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var c struct{ Version, AppVersion string }
	if err := yaml.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	if c.Version != hapax.Version() || c.AppVersion != hapax.Version() {
		t.Errorf("the chart is of version %s for %s, want %s for both", c.Version, c.AppVersion, hapax.Version())
	}
}

// objects are the types that the chart's templates render to.
var objects = map[string]func() any{
	"configmap.yaml":           func() any { return new(corev1.ConfigMap) },
	"deployment.yaml":          func() any { return new(appsv1.Deployment) },
	"statefulset.yaml":         func() any { return new(appsv1.StatefulSet) },
	"service.yaml":             func() any { return new(corev1.Service) },
	"poddisruptionbudget.yaml": func() any { return new(policyv1.PodDisruptionBudget) },
	"networkpolicy.yaml":       func() any { return new(networkingv1.NetworkPolicy) },
	"servicemonitor.yaml":      func() any { return new(serviceMonitor) },
}

// Every object has only fields that its type has, pods stop within the time that they
// are given, and the settings are ones that a server starts with.
func TestObjects(t *testing.T) {
	for name, values := range fits() {
		t.Run(name, func(t *testing.T) {
			rendered, err := render(top, values)
			if err != nil {
				t.Fatal(err)
			}
			decoded := map[string]any{}
			for file, text := range rendered {
				made, known := objects[file]
				if !known {
					t.Fatalf("this test does not know the type of %s", file)
				}
				decoded[file] = made()
				if err := yaml.UnmarshalStrict([]byte(text), decoded[file]); err != nil {
					t.Errorf("%s: %v\n%s", file, err, text)
				}
			}
			wanted := []string{"configmap.yaml", "networkpolicy.yaml", "service.yaml"}
			var pod corev1.PodTemplateSpec
			if name == "embedded.yaml" {
				set := decoded["statefulset.yaml"].(*appsv1.StatefulSet)
				pod, wanted = set.Spec.Template, append(wanted, "statefulset.yaml")
				if len(set.Spec.VolumeClaimTemplates) != 1 || set.Spec.VolumeClaimTemplates[0].Name != "data" || *set.Spec.Replicas != 1 {
					t.Errorf("the set keeps %+v for %d pods", set.Spec.VolumeClaimTemplates, *set.Spec.Replicas)
				}
			} else {
				pod, wanted = decoded["deployment.yaml"].(*appsv1.Deployment).Spec.Template, append(wanted, "deployment.yaml", "poddisruptionbudget.yaml")
			}
			if name == "everything" {
				wanted = append(wanted, "servicemonitor.yaml")
			}
			slices.Sort(wanted)
			if got := slices.Sorted(maps.Keys(decoded)); !slices.Equal(got, wanted) {
				t.Errorf("it renders %q, want %q", got, wanted)
			}
			if c := load(t, decoded["configmap.yaml"].(*corev1.ConfigMap)); !strings.Contains(","+c.Hosts+",", ","+decoded["service.yaml"].(*corev1.Service).Name+".default.svc,") {
				t.Errorf("requests for the service's name are refused; hosts is %s", c.Hosts)
			}
			checkPod(t, pod, load(t, decoded["configmap.yaml"].(*corev1.ConfigMap)))
		})
	}
}

// load reads the settings as the server in the pod does.
func load(t *testing.T, m *corev1.ConfigMap) server.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hapax.yaml")
	if err := os.WriteFile(file, []byte(m.Data["hapax.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := server.Load(server.Sources{File: file, Env: func(string) (string, bool) { return "", false }})
	if err != nil {
		t.Fatalf("%v\n%s", err, m.Data["hapax.yaml"])
	}
	return c
}

func checkPod(t *testing.T, pod corev1.PodTemplateSpec, c server.Config) {
	t.Helper()
	const handBack = 30 * time.Second // as docs/operating.md has it
	if grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second; grace < c.LameDuck+c.Drain+handBack {
		t.Errorf("a pod is killed after %v, and may need %v", grace, c.LameDuck+c.Drain+handBack)
	}
	main := pod.Spec.Containers[0]
	ready := main.ReadinessProbe
	noticed := time.Duration(ready.FailureThreshold*(ready.PeriodSeconds+ready.TimeoutSeconds)) * time.Second
	if noticed >= c.LameDuck {
		t.Errorf("it may take %v until a pod that stops is seen as not ready, and it serves for %v", noticed, c.LameDuck)
	}
	if ready.HTTPGet.Path != "/readyz" || main.LivenessProbe.HTTPGet.Path != "/healthz" {
		t.Errorf("the probes ask %s and %s", ready.HTTPGet.Path, main.LivenessProbe.HTTPGet.Path)
	}
	ports := map[string]int32{}
	for _, p := range main.Ports {
		ports[p.Name] = p.ContainerPort
	}
	if c.HTTP != "0.0.0.0:8080" || c.RESP != "0.0.0.0:6380" || ports["http"] != 8080 || ports["resp"] != 6380 {
		t.Errorf("the server listens on %s and %s, the pod's ports are %v", c.HTTP, c.RESP, ports)
	}
	if s := pod.Spec.SecurityContext; !*s.RunAsNonRoot || *s.RunAsUser != 65532 || !*main.SecurityContext.ReadOnlyRootFilesystem {
		t.Errorf("the pod runs as %+v", s)
	}
	if !slices.ContainsFunc(main.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == c.Data }) {
		t.Errorf("nothing is mounted at %s, and the rest is read-only", c.Data)
	}
	if strings.Contains(strings.Join(main.Args, " "), "--config") && *pod.Spec.EnableServiceLinks {
		t.Error("a service named hapax would set variables that look like settings")
	}
}
