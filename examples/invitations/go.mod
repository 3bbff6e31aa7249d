module github.com/hapax-id/hapax/examples/invitations

go 1.26.0

replace github.com/hapax-id/hapax => ../..

require github.com/hapax-id/hapax v0.0.0-00010101000000-000000000000
