package server

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

func parseYAML(data []byte) (map[string]any, error) {
	values := map[string]any{}
	var document yaml.Node
	err := yaml.Unmarshal(data, &document)
	if err == nil && len(document.Content) > 0 && document.Content[0].Kind == yaml.ScalarNode && document.Content[0].Tag == "!!null" {
		return values, nil
	}
	if err == nil && len(document.Content) > 0 && document.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("want a mapping in YAML, such as {key: value}")
	}
	if err == nil {
		err = document.Decode(&values)
	}
	if err != nil {
		return nil, errors.New(yamlTrouble(data, err))
	}
	return values, nil
}

var (
	yamlLine    = regexp.MustCompile(`line (\d+)`)
	yamlDoubled = regexp.MustCompile(`line (\d+): mapping key (".*") already defined at line (\d+)`)
)

// yamlTrouble tells in words of its own of the commonest mistakes: to indent with tabs,
// and give a key twice.
func yamlTrouble(data []byte, err error) string {
	text := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), "\n ", "")
	text = strings.TrimPrefix(text, "unmarshal errors: ")
	if m := yamlDoubled.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("line %s: %s is given a second time, after line %s; leave one out", m[1], m[2], m[3])
	}
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1]) // digits
		lines := strings.Split(string(data), "\n")
		if n = min(n, len(lines)); n > 0 {
			indent := lines[n-1][:len(lines[n-1])-len(strings.TrimLeft(lines[n-1], " \t"))]
			if strings.Contains(indent, "\t") {
				return fmt.Sprintf("line %d is indented with a tab; YAML takes spaces only", n)
			}
		}
	}
	return text
}
