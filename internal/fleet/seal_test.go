package fleet

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

// The vectors were computed with the crypto module of Node.js. A node of this version and one of
// another understand each other as long as they hold.
const (
	vectorKey    = "a key of the whole fleet"
	vectorAnswer = `{"state":"serving"}`
	vectorProof  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ.BiSdlFS6b2tKj5SQ6plYdljrvh-xwfJl9s3JgmvLFQU"
	vectorShown  = "HJ3vsZNWCFAWzIjcn1wjOvskvjzCq4vGlZRAMlQMIpY"
	vectorSealed = "000102030405060708090a0b25701b3e695c260ffe3e079d33dcf5fb3386f74f870beb89d00db11f99b2173f7f22de"
)

var vectorQuestion = question{"node-1.example:8080", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "about=status"}

func TestVectors(t *testing.T) {
	key := sealer(vectorKey)
	if proof := key.proof(vectorQuestion); proof != vectorProof {
		t.Errorf("proof: %s", proof)
	}
	if shown := key.show(vectorQuestion, []byte(vectorAnswer)); shown != vectorShown {
		t.Errorf("shown: %s", shown)
	}
	sealed, err := hex.DecodeString(vectorSealed)
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := key.open(vectorQuestion, sealed); err != nil || string(answer) != vectorAnswer {
		t.Errorf("opened: %q, %v", answer, err)
	}
}

// What was made for one question, with one key and in one direction, is good for nothing else.
func TestBindings(t *testing.T) {
	key, q, answer := sealer(vectorKey), vectorQuestion, []byte(vectorAnswer)
	sealed, err := key.seal(q, answer)
	if err != nil {
		t.Fatal(err)
	}
	if opened, err := key.open(q, sealed); err != nil || !bytes.Equal(opened, answer) {
		t.Fatalf("%q, %v", opened, err)
	}
	proof, shown := key.proof(q), key.show(q, answer)
	if _, ok := key.proves(proof, q.address, q.query); !ok {
		t.Fatal("a question does not prove itself")
	}
	if err := key.shown(q, answer, shown); err != nil {
		t.Fatal(err)
	}
	other := strings.Repeat("X", minWord)
	for what, tt := range map[string]struct {
		key sealer
		q   question
	}{
		"another key":     {sealer("another key of a fleet"), q},
		"another address": {key, question{"node-2.example:8080", q.word, q.query}},
		"another word":    {key, question{q.address, other, q.query}},
		"another query":   {key, question{q.address, q.word, "about=trace"}},
		"another split":   {key, question{q.address + q.word[:1], q.word[1:], q.query}},
	} {
		if _, err := tt.key.open(tt.q, sealed); err == nil {
			t.Errorf("%s opens the answer", what)
		}
		if tt.key.shown(tt.q, answer, shown) == nil {
			t.Errorf("%s shows the answer", what)
		}
		_, code, _ := strings.Cut(proof, ".")
		if _, ok := tt.key.proves(tt.q.word+"."+code, tt.q.address, tt.q.query); ok {
			t.Errorf("%s proves the question", what)
		}
	}
	for i := range sealed {
		changed := bytes.Clone(sealed)
		changed[i] ^= 1
		if _, err := key.open(q, changed); err == nil {
			t.Errorf("an answer whose byte %d was changed is opened", i)
		}
	}
	if key.shown(q, append(answer, ' '), shown) == nil {
		t.Error("an answer that was changed is shown")
	}
	for _, header := range []string{"", ".", "x", q.word, q.word + ".", q.word + "." + shown, "short." + shown, strings.Repeat("x", maxWord+1) + "." + shown, q.word + ".!"} {
		if _, ok := key.proves(header, q.address, q.query); ok {
			t.Errorf("%q proves a question", header)
		}
	}
	if _, err := key.open(q, sealed[:11]); err == nil {
		t.Error("less than a nonce is opened")
	}
	again, err := key.seal(q, answer)
	if err != nil || bytes.Equal(again[:12], sealed[:12]) {
		t.Errorf("the nonce %x comes twice, %v", again[:12], err)
	}
}

// A word is remembered until many others came.
func TestHeard(t *testing.T) {
	h := &heard{}
	for round := range 2 {
		for i := range maxHeard {
			if !h.isNew(fmt.Sprint(round, i)) {
				t.Fatalf("word %d of round %d is not new", i, round)
			}
		}
		for i := range maxHeard {
			if h.isNew(fmt.Sprint(round, i)) {
				t.Fatalf("word %d of round %d is new twice", i, round)
			}
		}
	}
	if len(h.words) != maxHeard || len(h.ring) != maxHeard {
		t.Errorf("%d words, %d places", len(h.words), len(h.ring))
	}
}
