module github.com/hapax-id/hapax/deploy/check

go 1.26.0
