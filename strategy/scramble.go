package strategy

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"strconv"
	"sync"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/codec"
)

// A Scrambler puts numbers in the place of numbers, so that their order and their
// amount do not show: a bijection that depends on a key and on the tag. Numbers
// below 10^Digits stay below it, and longer ones keep their length. Make one with
// [NewScrambler], and add its [Plugin] to a registry before its tags are opened.
type Scrambler struct {
	spec   string
	digits int
	key    []byte
	frozen string
	tags   sync.Map // of *codec.Codec, by tag
}

// NewScrambler returns a [Scrambler] with a key of 16 to 64 bytes, as random as can
// be, and numbers of 2 to 19 digits. Tag, key and digits must stay as they are as
// long as numbers of the tag are issued.
func NewScrambler(key []byte, digits int) (*Scrambler, error) {
	if digits < 2 || digits > 19 {
		return nil, &hapax.ValueError{Field: "digits", Value: digits, Allowed: "2 to 19", Err: hapax.ErrInvalidArgument}
	}
	s := &Scrambler{spec: fmt.Sprintf("{id:%d+:feistel}", digits), digits: digits, key: append([]byte(nil), key...)}
	if digits == 19 { // there are no longer ones
		s.spec = "{id:19:feistel}"
	}
	if _, err := s.parse("any"); err != nil {
		return nil, &hapax.ValueError{Field: "key", Value: fmt.Sprintf("(%d bytes)", len(key)), Allowed: fmt.Sprintf("%d to %d bytes, of which the last is no line break", codec.MinKeyBytes, codec.MaxKeyBytes), Err: hapax.ErrInvalidArgument}
	}
	mac := hmac.New(sha256.New, key)
	_, _ = mac.Write([]byte("hapax scramble")) // a hash takes everything
	s.frozen = fmt.Sprintf("scramble:%d:%x", digits, mac.Sum(nil)[:8])
	return s, nil
}

func (s *Scrambler) parse(tag string) (*codec.Codec, error) {
	return codec.Parse(s.spec, codec.Options{Tag: tag, Keys: map[string][]byte{"1": s.key}})
}

func (s *Scrambler) codec(tag string) (*codec.Codec, error) {
	if c, ok := s.tags.Load(tag); ok {
		return c.(*codec.Codec), nil
	}
	c, err := s.parse(tag)
	if err != nil {
		return nil, err
	}
	s.tags.Store(tag, c)
	return c, nil
}

// Plugin returns the plugin "scramble", which replaces the numbers of the tags, by
// default of all.
func (s *Scrambler) Plugin(tags ...string) Plugin {
	return Plugin{Name: "scramble", Tags: tags, Frozen: s.frozen, Original: s.Original, Replace: func(_ context.Context, c Call, ids []hapax.ID) error {
		for i, id := range ids {
			shown, err := s.Scramble(c.Tag(), id)
			if err != nil {
				return err
			}
			ids[i] = shown
		}
		return nil
	}}
}

// Scramble returns what is shown for a tag's number.
func (s *Scrambler) Scramble(tag string, id hapax.ID) (hapax.ID, error) {
	c, err := s.codec(tag)
	if err != nil {
		return 0, err
	}
	text, err := c.Append(make([]byte, 0, 20), id)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	return hapax.ID(n), err
}

// Original returns the number that another one is shown for.
func (s *Scrambler) Original(tag string, shown hapax.ID) (hapax.ID, error) {
	c, err := s.codec(tag)
	if err != nil {
		return 0, err
	}
	if shown < 0 {
		return 0, fmt.Errorf("%w: %d is negative", codec.ErrRange, shown)
	}
	return c.Decode(fmt.Sprintf("%0*d", s.digits, int64(shown)))
}
