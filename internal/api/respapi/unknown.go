package respapi

import (
	"strings"

	"github.com/hapax-id/hapax"
)

// API is the protocol's name in metrics and logs.
const API = "resp"

// Codes of errors that only this protocol has.
const (
	codeUnknown  hapax.Code = "unknown_command"
	codeProtocol hapax.Code = "protocol_error"
)

// Codes returns the codes of errors that only this protocol has.
func Codes() []hapax.Code { return []hapax.Code{codeUnknown, codeProtocol} }

// hints tell users of Redis what to do here instead, by the names of commands.
var hints = func() map[string]string {
	byName := map[string]string{}
	for names, hint := range map[string]string{
		"SET SETNX SETEX PSETEX GETSET GETDEL GETEX MSET MSETNX MGET APPEND": "hapax issues numbers and keeps no values; INCR tag issues the next one; PUT /v1/tags/{tag} or hapax tags create sets where a tag begins",
		"DECR DECRBY INCRBYFLOAT":                              "numbers only go up: INCR tag issues the next one, INCRBY tag n reserves n",
		"HINCRBY ZINCRBY HSET HGET":                            "there is a tag for each line of numbers, and nothing else: INCR tag issues the next one",
		"EXPIRE PEXPIRE EXPIREAT PEXPIREAT PERSIST TTL PTTL":   "a tag does not expire, since a number is never issued again; to begin anew each day, give the tag a code such as {yyyy}{MM}{dd}-{seq:6}",
		"DEL UNLINK FLUSHDB FLUSHALL RENAME RENAMENX":          "DELETE /v1/tags/{tag} or hapax tags delete deletes a tag, and its numbers never come again",
		"KEYS SCAN EXISTS TYPE DBSIZE RANDOMKEY":               "HAPAX.TAGS lists the tags, GET tag shows the last number",
		"WATCH UNWATCH":                                        "no number is issued twice, so there is nothing to watch; MULTI and EXEC work without",
		"EVAL EVALSHA EVAL_RO SCRIPT FUNCTION FCALL":           "there are no scripts, and none are needed: every command is atomic",
		"READONLY READWRITE ASKING SENTINEL REPLICAOF SLAVEOF": "hapax has neither Redis Cluster nor Sentinel: connect to any of its nodes as to a single server",
	} {
		for name := range strings.FieldsSeq(names) {
			byName[name] = hint
		}
	}
	return byName
}()

// unknownCommand says that there is no such command, in the words by which clients
// know that, and what this server is.
func unknownCommand(name []byte) string {
	upper := strings.ToUpper(string(name[:min(len(name), maxShownArgs)]))
	if upper == "CLUSTER" {
		return "ERR This instance has cluster support disabled: hapax is no Redis Cluster; connect to any of its nodes as to a single server"
	}
	hint, ok := hints[upper]
	if !ok {
		hint = "this is hapax, which issues unique numbers: INCR tag, INCRBY tag n, HAPAX.NEXT tag [COUNT n]; COMMAND DOCS describes the rest"
	}
	return "ERR unknown command '" + string(name[:min(len(name), maxShownArgs)]) + "': " + hint
}
