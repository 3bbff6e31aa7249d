CREATE TABLE recipe_sqlc (
    id   BIGINT PRIMARY KEY,
    what TEXT NOT NULL
);
