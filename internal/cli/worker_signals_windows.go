package cli

import "os"

var handedOn = []os.Signal{os.Interrupt}

func endsCommands(os.Signal) bool { return true }

var ending = []os.Signal{os.Interrupt}
