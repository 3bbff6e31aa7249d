package redismongo

// The scripts, for tests that send them at a time of their own.
var (
	TakeScript    = takeScript
	InstallScript = installScript
)
