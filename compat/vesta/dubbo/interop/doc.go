// Package interop holds the tests of the Dubbo server with an implementation of the
// protocol that is not ours: a consumer written with dubbo-go. It is a module of its
// own, so that users of hapax do not depend on dubbo-go.
package interop
