package client

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
)

// Codes are numbers with the texts that show them.
type Codes struct {
	IDs    []hapax.ID
	Texts  []string
	Period string // of all of them, such as 20261121; empty where numbers never restart
}

// NextCodes has a server issue n numbers of a tag that has a code, and write them
// as the code says. Errors are those of NextN; ErrInvalidArgument for a tag without
// a code, ErrLineExhausted where the code cannot show the number.
//
// It is how numbers that restart with each period are issued. Segment can lease
// from the line of one period, whose name the server's error tells.
func (c *Client) NextCodes(ctx context.Context, tag string, n int) (Codes, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return Codes{}, err
	}
	if n < 1 || n > math.MaxInt32 {
		return Codes{}, outOfRange("count", n, "1 to what the server allows at once")
	}
	req := &hapaxv1.NextRequest{Tag: tag, Count: int32(n), Codes: true}
	return persist(ctx, c, func(ctx context.Context) (Codes, error) {
		return granted(&c.fences, "issue/"+tag, func() (Codes, error) {
			return call(ctx, c, repeatable, func(ctx context.Context, s *server) (Codes, error) {
				res, err := s.issue.Next(ctx, req)
				if err != nil {
					return Codes{}, err
				}
				codes := Codes{Texts: res.GetCodes(), Period: res.GetPeriod()}
				if len(res.GetIds()) != n || len(codes.Texts) != n {
					return Codes{}, fmt.Errorf("server %s sent %d numbers with %d codes instead of %d", s.url, len(res.GetIds()), len(codes.Texts), n)
				}
				for _, id := range res.GetIds() {
					codes.IDs = append(codes.IDs, hapax.ID(id))
				}
				return codes, nil
			})
		})
	})
}

// A ParsedCode is what a code says.
type ParsedCode struct {
	ID          hapax.ID
	Period      string    // empty where numbers never restart
	From, Until time.Time // of the period, in the code's time zone if this system knows it
	Spec        string    // of the code
	Key         string    // the ID of the key that scrambles
}

// ParseCode has a server take a code of a tag apart. ErrInvalidID tells the
// position of the mistake.
func (c *Client) ParseCode(ctx context.Context, tag, code string) (ParsedCode, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return ParsedCode{}, err
	}
	res, err := call(ctx, c, repeatable, func(ctx context.Context, s *server) (*hapaxv1.ParseCodeResponse, error) {
		return s.issue.ParseCode(ctx, &hapaxv1.ParseCodeRequest{Tag: tag, Code: code})
	})
	if err != nil {
		return ParsedCode{}, err
	}
	p := ParsedCode{ID: hapax.ID(res.GetId()), Period: res.GetPeriod(), Spec: res.GetSpec(), Key: res.GetKey()}
	if res.GetFrom() != nil {
		zone, err := time.LoadLocation(res.GetZone())
		if err != nil {
			zone = time.UTC
		}
		p.From, p.Until = res.GetFrom().AsTime().In(zone), res.GetUntil().AsTime().In(zone)
	}
	return p, nil
}

// SetCode has a server show the numbers of a tag by a spec. It creates the tag if
// there is none. zone is the time zone of periods where the spec names none. A
// tag that has a code gets the new one only if no text can belong to both; what
// was shown before stays readable.
func (c *Client) SetCode(ctx context.Context, tag, spec, zone string) (hapax.Tag, error) {
	if err := hapax.ValidateName("tag", tag); err != nil {
		return hapax.Tag{}, err
	}
	created, err := call(ctx, c, single, func(ctx context.Context, s *server) (*hapaxv1.CreateTagResponse, error) {
		return s.admin.CreateTag(ctx, &hapaxv1.CreateTagRequest{Tag: &hapaxv1.Tag{Name: tag}, Code: spec, Zone: zone})
	})
	if hapax.CodeOf(err) != hapax.ErrTagExists.Code() {
		return tagOf(created.GetTag(), err)
	}
	updated, err := call(ctx, c, single, func(ctx context.Context, s *server) (*hapaxv1.UpdateTagResponse, error) {
		return s.admin.UpdateTag(ctx, &hapaxv1.UpdateTagRequest{Name: tag, Code: spec, Zone: zone})
	})
	return tagOf(updated.GetTag(), err)
}
