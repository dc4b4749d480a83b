// Command playground is the program within the page: it gives JavaScript two functions, lockmigratePlay and lockmigrateBroken.
package main

import (
	"encoding/json"
	"syscall/js"

	"github.com/lockmigrate/lockmigrate/internal/simulate/playground"
)

func main() {
	js.Global().Set("lockmigratePlay", js.FuncOf(func(_ js.Value, args []js.Value) any {
		var s playground.Settings
		err := json.Unmarshal([]byte(args[0].String()), &s)
		var played *playground.Played
		if err == nil {
			played, err = playground.Play(s)
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
		var s playground.Settings
		if err := json.Unmarshal([]byte(args[0].String()), &s); err != nil {
			return -1
		}
		n, err := playground.Broken(s)
		if err != nil {
			return -1
		}
		return n
	}))
	select {}
}
