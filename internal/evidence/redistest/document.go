package redistest

import (
	"os"
	"strings"
	"testing"
)

// Document compares a file with what it has to be, or writes it.
func Document(t testing.TB, path, want string, write bool) {
	t.Helper()
	got, err := os.ReadFile(path)
	if write {
		err = os.WriteFile(path, []byte(want), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !write && string(got) != want {
		t.Errorf("%s differs from what the code says: run this test with -update", path)
	}
}

// Section is Document for the part of a file between "<!-- NAME: made from FROM -->" and "<!-- end of NAME -->".
func Section(t testing.TB, path, name, from, want string, write bool) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := "<!-- "+name+": made from "+from+" -->\n", "<!-- end of "+name+" -->\n"
	before, rest, begins := strings.Cut(string(text), begin)
	_, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatalf("%s has no section %s", path, name)
	}
	Document(t, path, before+begin+"\n"+want+"\n"+end+after, write)
}
