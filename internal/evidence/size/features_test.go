package main

import "testing"

// TestFeaturesAreThere looks for every line of features.txt in this tree: what is named has code.
func TestFeaturesAreThere(t *testing.T) {
	for _, p := range parts() {
		names := [][]string{nil}
		if len(p.names) > 0 {
			names = nil
			for _, name := range p.names {
				names = append(names, []string{name})
			}
		}
		for _, p.names = range names {
			if n, err := p.count("../../.."); err != nil || n == 0 {
				t.Errorf("%s: %s %v has %d lines of code (%v)", p.feature, p.path, p.names, n, err)
			}
		}
	}
}
