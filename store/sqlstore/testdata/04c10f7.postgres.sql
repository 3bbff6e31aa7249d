CREATE TABLE public.hapax_meta (
    name text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE public.hapax_rows (
    tbl text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    value bytea NOT NULL
);
CREATE TABLE public.hapax_tags (
    name text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    start bigint NOT NULL,
    step bigint NOT NULL,
    min_step bigint NOT NULL,
    max_step bigint NOT NULL,
    delta bigint NOT NULL,
    remainder bigint NOT NULL,
    mark bigint NOT NULL,
    pool text NOT NULL COLLATE pg_catalog."C",
    extra bytea NOT NULL,
    deleted boolean NOT NULL,
    key_hash text NOT NULL COLLATE pg_catalog."C",
    run bigint NOT NULL
);
INSERT INTO public.hapax_meta VALUES ('primary', 'system 7711042051979433194/timeline 00000001');
INSERT INTO public.hapax_meta VALUES ('failover', 'refuse');
INSERT INTO public.hapax_meta VALUES ('store_id', 'JBWSIC6QQRNC5H23P7MMBW5IIX');
INSERT INTO public.hapax_rows VALUES ('pools', 'default', '\x7b226c61796f7574223a2274696d653a34312c776f726b65723a31302c73657175656e63653a31322c756e69743d316d732c65706f63683d323031302d31312d30345430313a34323a35342e3635375a227d');
INSERT INTO public.hapax_rows VALUES ('workers/default', '0000000000000000000', '\x7b226d61726b223a3530363533323734313435382c2266726f6d223a3530363533323734313435382c22746f6b656e223a322c22686f6c646572223a2243424d34485142373732443742434e584655474d554f5a44574c222c226e6f6465223a22423251413458434158474d524a4e533543334b55465933324e4c227d');
INSERT INTO public.hapax_tags VALUES ('snowflake', 'snowflake', 0, 0, 0, 0, 0, 0, 0, 'default', '\x', false, '', 0);
INSERT INTO public.hapax_tags VALUES ('gone', 'segment', 1, 1000, 1000, 1000000, 1, 0, 1001, '', '\x', true, '9a344ada5654816ad481f0779164c82f', 1000);
INSERT INTO public.hapax_tags VALUES ('orders', 'segment', 1, 1000, 1000, 1000000, 1, 0, 301, '', '\x', false, '', 0);
ALTER TABLE ONLY public.hapax_meta
    ADD CONSTRAINT hapax_meta_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.hapax_rows
    ADD CONSTRAINT hapax_rows_pkey PRIMARY KEY (tbl, name);
ALTER TABLE ONLY public.hapax_tags
    ADD CONSTRAINT hapax_tags_pkey PRIMARY KEY (name);
