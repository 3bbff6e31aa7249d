package fleet

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Header carries the proof of a question, and over TLS that of an answer.
const Header = "Hapax-Fleet"

// A sealer is the fleet key, which proves and encrypts. docs/between-nodes.md says what it protects against.
type sealer []byte

// The purposes of codes, which keep a code of one kind from being taken for one of another.
const (
	purposeAsk    = "ask"    // a question's code
	purposeAnswer = "answer" // the cipher key of an answer
	purposeShow   = "show"   // an answer's code where TLS encrypts
)

// sum returns a code of the parts under the fleet key. Each part is preceded by its length,
// so that no two lists of parts are the same text.
func (s sealer) sum(purpose string, parts ...string) []byte {
	h := hmac.New(sha256.New, s)
	fmt.Fprintf(h, "%d:%s", len(purpose), purpose)
	for _, part := range parts {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return h.Sum(nil)
}

// A question is what one node asks another.
type question struct {
	address string // of the asked node, as its row has it
	word    string // random, and used once
	query   string
}

// proof returns the header of a question.
func (s sealer) proof(q question) string {
	return q.word + "." + base64.RawURLEncoding.EncodeToString(s.sum(purposeAsk, q.address, q.word, q.query))
}

// proves reports whether a header is the proof of a question to an address, and returns the question.
func (s sealer) proves(header, address, query string) (question, bool) {
	word, code, _ := strings.Cut(header, ".")
	q := question{address, word, query}
	mac, err := base64.RawURLEncoding.DecodeString(code)
	return q, err == nil && len(word) >= minWord && len(word) <= maxWord && hmac.Equal(mac, s.sum(purposeAsk, address, word, query))
}

// The length of a word; rand.Text makes 26 characters of 130 random bits.
const (
	minWord = 26
	maxWord = 64
)

// cipher returns the cipher of the answer to a question. Its key is of no other question.
func (s sealer) cipher(q question) (cipher.AEAD, error) {
	block, err := aes.NewCipher(s.sum(purposeAnswer, q.address, q.word, q.query))
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// seal encrypts the answer to a question: a nonce of 12 random bytes, the ciphertext, a tag of 16 bytes.
func (s sealer) seal(q question, answer []byte) ([]byte, error) {
	aead, err := s.cipher(q)
	if err != nil {
		return nil, err
	}
	return aead.Seal(nil, nil, answer, nil), nil //nolint:gosec // it makes its own nonce
}

// open returns the answer that was sealed for a question.
func (s sealer) open(q question, sealed []byte) ([]byte, error) {
	aead, err := s.cipher(q)
	if err != nil {
		return nil, err
	}
	return aead.Open(nil, nil, sealed, nil)
}

// show returns the header of an answer that TLS encrypts. A certificate shows a name, which
// whoever writes rows may own; this shows the key.
func (s sealer) show(q question, answer []byte) string {
	return base64.RawURLEncoding.EncodeToString(s.sum(purposeShow, q.address, q.word, q.query, string(answer)))
}

var errUnproven = errors.New("the answer was not made with the fleet key")

// shown returns an error unless a header is that of the answer to a question.
func (s sealer) shown(q question, answer []byte, header string) error {
	mac, err := base64.RawURLEncoding.DecodeString(header)
	if err != nil || !hmac.Equal(mac, s.sum(purposeShow, q.address, q.word, q.query, string(answer))) {
		return errUnproven
	}
	return nil
}

// heard remembers the words of questions, so that one that was recorded on the network is
// not answered again. It holds as many words as questions come in minutes, and an older one
// costs no more than the answer: nobody can read that without the key.
type heard struct {
	mu    sync.Mutex // guards the fields below
	words map[string]bool
	ring  []string
	next  int
}

const maxHeard = 4096

// isNew reports whether a word is heard for the first time, and remembers it. Only words with a
// valid code may come here: a stranger's would push them out.
func (h *heard) isNew(word string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.words[word] {
		return false
	}
	if h.words == nil {
		h.words = map[string]bool{}
	}
	if len(h.ring) < maxHeard {
		h.ring = append(h.ring, word)
	} else {
		delete(h.words, h.ring[h.next])
		h.ring[h.next] = word
		h.next = (h.next + 1) % maxHeard
	}
	h.words[word] = true
	return true
}
