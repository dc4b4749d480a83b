// Command playground is the program within the page, so that the shipped protocol runs in the reader's browser: it gives JavaScript two functions,
// lockmigratePlay and lockmigrateBroken. Go says what happened in figures; the page has the words.
package main

import (
	"encoding/json"
	"syscall/js"
)

func main() {
	js.Global().Set("lockmigratePlay", js.FuncOf(func(_ js.Value, args []js.Value) any {
		var s Settings
		err := json.Unmarshal([]byte(args[0].String()), &s)
		var played *Played
		if err == nil {
			played, err = Play(s)
		}
		var text []byte
		if err == nil {
			text, err = json.Marshal(played)
		}
		if err != nil {
			text, _ = json.Marshal(map[string]string{"error": err.Error()})
		}
		return string(text)
	}))
	js.Global().Set("lockmigrateBroken", js.FuncOf(func(_ js.Value, args []js.Value) any {
		var s Settings
		if err := json.Unmarshal([]byte(args[0].String()), &s); err != nil {
			return -1
		}
		n, err := Broken(s)
		if err != nil {
			return -1
		}
		return n
	}))
	select {}
}
