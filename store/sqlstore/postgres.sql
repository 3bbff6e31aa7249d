CREATE TABLE IF NOT EXISTS hapax_meta (
  name text COLLATE "C" NOT NULL PRIMARY KEY,
  value text COLLATE "C" NOT NULL
);

CREATE TABLE IF NOT EXISTS hapax_tags (
  name text COLLATE "C" NOT NULL PRIMARY KEY,
  kind text COLLATE "C" NOT NULL,
  start bigint NOT NULL,
  step bigint NOT NULL,
  min_step bigint NOT NULL,
  max_step bigint NOT NULL,
  mark bigint NOT NULL,
  pool text COLLATE "C" NOT NULL,
  deleted boolean NOT NULL
);

CREATE TABLE IF NOT EXISTS hapax_pools (
  name text COLLATE "C" NOT NULL PRIMARY KEY,
  layout text COLLATE "C" NOT NULL
);

CREATE TABLE IF NOT EXISTS hapax_workers (
  pool text COLLATE "C" NOT NULL,
  id bigint NOT NULL,
  mark bigint NOT NULL,
  epoch bigint NOT NULL,
  holder bytea NOT NULL,
  expires bigint NOT NULL,
  PRIMARY KEY (pool, id)
);
