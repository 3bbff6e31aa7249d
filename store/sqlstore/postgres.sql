CREATE TABLE IF NOT EXISTS hapax_rows (
  tbl text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  value text COLLATE "C" NOT NULL,
  PRIMARY KEY (tbl, name)
);

CREATE TABLE IF NOT EXISTS hapax_meta (
  name text COLLATE "C" NOT NULL PRIMARY KEY,
  value text COLLATE "C" NOT NULL,
  format bigint NOT NULL
);
