// Command playground is the program within the page, so that the shipped protocol runs in the reader's browser: it gives JavaScript two functions,
// lockmigratePlay and lockmigrateBroken. Go says what happened in figures; the page has the words.
package main

import (
	"encoding/json"
	"syscall/js"
)

func main() {
	js.Global().Set("lockmigratePlay", function(func(s Settings) (any, error) { return Play(s) }))
	js.Global().Set("lockmigrateBroken", function(func(s Settings) (any, error) { return Broken(s) }))
	select {}
}

// function makes a function of JavaScript, from settings to an answer or {"error": "..."}, both as JSON.
func function(answer func(Settings) (any, error)) js.Func {
	return js.FuncOf(func(_ js.Value, args []js.Value) any {
		var s Settings
		var said any
		err := json.Unmarshal([]byte(args[0].String()), &s)
		if err == nil {
			said, err = answer(s)
		}
		if err != nil {
			said = map[string]string{"error": err.Error()}
		}
		text, _ := json.Marshal(said)
		return string(text)
	})
}
