module github.com/hapax-id/hapax/examples/recipes/ent

go 1.26.0

replace github.com/hapax-id/hapax => ../../..
