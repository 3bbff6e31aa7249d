-- name: CreateOrder :exec
INSERT INTO recipe_sqlc (id, what) VALUES ($1, $2);

-- name: CreateOrders :copyfrom
INSERT INTO recipe_sqlc (id, what) VALUES ($1, $2);
