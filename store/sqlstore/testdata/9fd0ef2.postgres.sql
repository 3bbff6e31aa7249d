CREATE TABLE public.hapax_meta (
    name text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE public.hapax_pools (
    name text NOT NULL COLLATE pg_catalog."C",
    layout text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE public.hapax_tags (
    name text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    start bigint NOT NULL,
    step bigint NOT NULL,
    min_step bigint NOT NULL,
    max_step bigint NOT NULL,
    mark bigint NOT NULL,
    pool text NOT NULL COLLATE pg_catalog."C",
    deleted boolean NOT NULL
);
CREATE TABLE public.hapax_workers (
    pool text NOT NULL COLLATE pg_catalog."C",
    id bigint NOT NULL,
    mark bigint NOT NULL,
    epoch bigint NOT NULL,
    holder bytea NOT NULL,
    expires bigint NOT NULL
);
INSERT INTO public.hapax_meta VALUES ('store_id', '6WZRL5SZMGLJ4UWLKQ4OAI5Z7L');
INSERT INTO public.hapax_meta VALUES ('primary', 'system 7711042051979433194/timeline 00000001');
INSERT INTO public.hapax_meta VALUES ('failover', 'refuse');
INSERT INTO public.hapax_pools VALUES ('default', 'time:41,worker:10,sequence:12,unit=1ms,epoch=2010-11-04T01:42:54.657Z');
INSERT INTO public.hapax_tags VALUES ('snowflake', 'snowflake', 0, 0, 0, 0, 0, 'default', false);
INSERT INTO public.hapax_tags VALUES ('orders', 'segment', 1, 1000, 1000, 1000000, 2001, '', false);
INSERT INTO public.hapax_tags VALUES ('gone', 'segment', 1, 1000, 1000, 1000000, 1001, '', true);
INSERT INTO public.hapax_workers VALUES ('default', 0, 506532724711, 2, '\x34434c454e3736344c5253494f49535a424c4959374748374747', 0);
ALTER TABLE ONLY public.hapax_meta
    ADD CONSTRAINT hapax_meta_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.hapax_pools
    ADD CONSTRAINT hapax_pools_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.hapax_tags
    ADD CONSTRAINT hapax_tags_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.hapax_workers
    ADD CONSTRAINT hapax_workers_pkey PRIMARY KEY (pool, id);
