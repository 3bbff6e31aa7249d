package rpcapi

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hapax-id/hapax"
	"github.com/hapax-id/hapax/api/hapaxv1"
	"github.com/hapax-id/hapax/internal/service/define"
)

// nextCodes answers Next with numbers and the texts that show them.
func (s *issueServer) nextCodes(ctx context.Context, tag string, n int) (*hapaxv1.NextResponse, error) {
	issued, err := s.svc.NextCodes(ctx, tag, n)
	if err != nil {
		return nil, err
	}
	return &hapaxv1.NextResponse{Ids: appendNumbers(make([]int64, 0, n), issued.IDs), Codes: issued.Codes, Period: issued.Period}, nil
}

// ParseCode implements hapaxv1connect.IssueServiceHandler.
func (s *issueServer) ParseCode(ctx context.Context, req *hapaxv1.ParseCodeRequest) (*hapaxv1.ParseCodeResponse, error) {
	p, err := s.svc.ParseCode(ctx, req.GetTag(), req.GetCode())
	if err != nil {
		return nil, err
	}
	res := &hapaxv1.ParseCodeResponse{Id: int64(p.ID), Period: p.Period, Spec: p.Spec, Key: p.Key}
	if p.From != nil {
		res.From, res.Until, res.Zone = timestamppb.New(*p.From), timestamppb.New(*p.Until), p.From.Location().String()
	}
	return res, nil
}

// withCode puts the code that a request asks for into a tag's Extra.
func withCode(extra, code, zone string) (string, error) {
	switch {
	case code == "" && zone != "":
		return extra, outOfRange("zone", zone, "none without a code")
	case code == "":
		return extra, nil
	case extra != "":
		return extra, &hapax.ValueError{Field: "extra", Value: extra, Allowed: "none beside a code, which stands there", Err: hapax.ErrInvalidArgument}
	}
	return define.CodeExtra(code, zone), nil
}
