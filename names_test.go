package hapax

import (
	"errors"
	"testing"
	"unicode"

	"pgregory.net/rapid"
)

func TestNamesThatCannotBeTold(t *testing.T) {
	for name, ok := range map[string]bool{
		"orders": true, "Bestellungen 2026": true, "zamówienia": true, "注文": true, "طلبات": true, "заказы": true, "a/b:c%": true, "🧾": true,
		"ord\u200bers": false, "ord\u200ders": false, "orders\ufeff": false, "\u202eorders": false, "orders\u2066": false, "or\u00adders": false,
		"orders\ufe0f": false, "orders\u3164": false, "orders\u115f": false, "orders\u2028": false, "orders\ufdd0": false, "orders\U0001ffff": false,
		"orders\U000e0041": false, "orders\u0085": false, "orders\n": false, "orders\xff": false, "": false,
	} {
		err := ValidateName("tag", name)
		if (err == nil) != ok || err != nil && !errors.Is(err, ErrInvalidTag) {
			t.Errorf("%+q: %v", name, err)
		}
	}
}

// No name holds what nobody sees, wherever it stands.
func TestHiddenCharacters(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringOfN(rapid.RuneFrom(nil, unicode.L, unicode.N, unicode.P), 0, 10, 60).Draw(t, "name")
		r := rapid.RuneFrom(nil, hidden...).Draw(t, "hidden")
		if ValidateName("tag", name+string(r)+"x") == nil {
			t.Fatalf("%+q is a name", name+string(r)+"x")
		}
	})
}
