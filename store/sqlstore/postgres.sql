CREATE TABLE IF NOT EXISTS hapax_tags (
  name text COLLATE "C" NOT NULL PRIMARY KEY,
  kind text COLLATE "C" NOT NULL,
  start bigint NOT NULL,
  step bigint NOT NULL,
  min_step bigint NOT NULL,
  max_step bigint NOT NULL,
  delta bigint NOT NULL,
  remainder bigint NOT NULL,
  mark bigint NOT NULL,
  token bigint NOT NULL DEFAULT 0,
  pool text COLLATE "C" NOT NULL,
  extra bytea NOT NULL,
  deleted boolean NOT NULL,
  key_hash text COLLATE "C" NOT NULL,
  run bigint NOT NULL
);

CREATE TABLE IF NOT EXISTS hapax_rows (
  tbl text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  value bytea NOT NULL,
  PRIMARY KEY (tbl, name)
);

CREATE TABLE IF NOT EXISTS hapax_meta (
  name text COLLATE "C" NOT NULL PRIMARY KEY,
  value text COLLATE "C" NOT NULL,
  format bigint NOT NULL
);
