package codec_test

import (
	"fmt"
	"time"

	"github.com/hapax-id/hapax/codec"
)

func Example() {
	c, err := codec.Parse("INV-{yyyy}{MM}{dd}-{seq:6}{check}", codec.Options{Zone: "Europe/Berlin"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c)
	p, err := c.Period(time.Date(2026, time.November, 20, 23, 30, 0, 0, time.UTC))
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := c.AppendPeriod(nil, p, 428)
	fmt.Println(string(text), p, err)

	_, _, err = c.DecodePeriod("INV-20261121-0004822")
	fmt.Println(err)
	// Output:
	// {zone:Europe/Berlin}INV-{yyyy}{MM}{dd}-{seq:6}{check}
	// INV-20261121-0004282 20261121 <nil>
	// codec: invalid code at position 20: "2": want the check character of what comes before it; something is mistyped
}

func ExampleCodec_Normalize() {
	c, err := codec.Parse("{id:8:crockford32:feistel:group=4}{check}", codec.Options{
		Tag: "coupons", Keys: map[string][]byte{"k1": []byte("0123456789abcdef0123456789abcdef")},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := c.Append(nil, 428)
	fmt.Println(string(text), err)
	typed, err := c.Normalize("sid8 q3hcw")
	fmt.Println(typed, err)
	id, err := c.Decode(typed)
	fmt.Println(id, err)
	// Output:
	// S1D8-Q3HCW <nil>
	// S1D8-Q3HCW <nil>
	// 428 <nil>
}
