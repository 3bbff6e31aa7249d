-- The parts of hapax codes that need no key, as functions of PostgreSQL 13 and later.
--
--   SELECT hapax_encode(hapax_multiply(id, 32::numeric ^ 8), 8, '0123456789ABCDEFGHJKMNPQRSTVWXYZ')
--
-- shows the number id as {id:8:crockford32:multiply} does, and
--
--   SELECT hapax_unmultiply(hapax_decode(code, '0123456789ABCDEFGHJKMNPQRSTVWXYZ'), 32::numeric ^ 8)
--
-- reads it. The domain n is the alphabet's size to the power of the width, 2^63 at
-- most; it is numeric because 2^63 is no bigint.

-- hapax_encode shows a number in digits of a fixed width.
CREATE FUNCTION hapax_encode(number bigint, width int, alphabet text) RETURNS text AS $$
DECLARE
	size constant int := length(alphabet);
	rest bigint := number;
	code text := '';
BEGIN
	FOR i IN 1..width LOOP
		code := substr(alphabet, (rest % size)::int + 1, 1) || code;
		rest := rest / size;
	END LOOP;
	IF number < 0 OR rest > 0 THEN
		RAISE EXCEPTION 'number %: want 0 to %', number, size::numeric ^ width - 1;
	END IF;
	RETURN code;
END $$ LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE;

-- hapax_decode is the inverse of hapax_encode. Groups and check characters have to
-- be taken off before.
CREATE FUNCTION hapax_decode(code text, alphabet text) RETURNS bigint AS $$
DECLARE
	digit int;
	number numeric := 0;
BEGIN
	FOR i IN 1..length(code) LOOP
		digit := strpos(alphabet, substr(code, i, 1)) - 1;
		IF digit < 0 THEN
			RAISE EXCEPTION 'invalid code at position %: want a character of %', i, alphabet;
		END IF;
		number := number * length(alphabet) + digit;
	END LOOP;
	RETURN number; -- an error if it is no bigint
END $$ LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE;

-- hapax_reverse reverses the bits of a number below 2^bits. It is its own inverse.
CREATE FUNCTION hapax_reverse(number bigint, bits int) RETURNS bigint AS $$
DECLARE
	reversed bigint := 0;
BEGIN
	FOR i IN 0..bits - 1 LOOP
		reversed := reversed << 1 | (number >> i & 1);
	END LOOP;
	RETURN reversed;
END $$ LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE;

-- hapax_multiplier returns what numbers below n are multiplied by.
CREATE FUNCTION hapax_multiplier(n numeric) RETURNS numeric AS $$
DECLARE
	factor numeric := div(n * 11400714819323198485, 18446744073709551616);
BEGIN
	IF factor % 2 = 0 THEN
		factor := factor + 1;
	END IF;
	WHILE gcd(factor, n) <> 1 LOOP
		factor := factor + 2;
	END LOOP;
	RETURN factor;
END $$ LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE;

CREATE FUNCTION hapax_multiply(number bigint, n numeric) RETURNS bigint AS $$
	SELECT (number * hapax_multiplier(n) % n)::bigint
$$ LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE;

-- hapax_unmultiply is the inverse of hapax_multiply.
CREATE FUNCTION hapax_unmultiply(number bigint, n numeric) RETURNS bigint AS $$
DECLARE
	r0 numeric := n;
	r1 numeric := hapax_multiplier(n) % n;
	t0 numeric := 0;
	t1 numeric := 1;
	q numeric;
	s numeric;
BEGIN
	WHILE r1 <> 0 LOOP
		q := div(r0, r1);
		s := r0 - q * r1; r0 := r1; r1 := s;
		s := t0 - q * t1; t0 := t1; t1 := s;
	END LOOP;
	RETURN mod(mod(number * t0, n) + n, n);
END $$ LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE;

-- hapax_check returns the sum of the values of digits over an alphabet of a size,
-- which is the check character's value; that of mod97 is its two digits.
CREATE FUNCTION hapax_check(name text, digits int[], size int) RETURNS int AS $$
DECLARE
	damm constant text := '0317598642709215486342068713591750983426612304597836742095815869720134894536201794386172052581436790';
	s int := CASE name WHEN 'iso7064' THEN size ELSE 0 END;
	d int;
	n constant int := coalesce(array_length(digits, 1), 0);
BEGIN
	FOR i IN 1..n LOOP
		d := digits[i];
		CASE name
		WHEN 'damm' THEN
			s := substr(damm, 10 * s + d + 1, 1)::int;
		WHEN 'luhn' THEN
			IF (n - i) % 2 = 0 THEN
				d := 2 * d / 10 + 2 * d % 10;
			END IF;
			s := s + d;
		WHEN 'mod97' THEN
			s := (10 * s + d) % 97;
		WHEN 'iso7064' THEN
			s := coalesce(nullif((s + d) % size, 0), size) * 2 % (size + 1);
		WHEN 'gf' THEN
			s := (s # d) << 1;
			IF s >= size THEN
				s := s # CASE size WHEN 16 THEN 19 WHEN 32 THEN 37 WHEN 64 THEN 67 END;
			END IF;
		END CASE;
	END LOOP;
	RETURN CASE name
		WHEN 'luhn' THEN (10 - s % 10) % 10
		WHEN 'mod97' THEN 98 - s * 100 % 97
		WHEN 'iso7064' THEN (size + 1 - s) % size
		ELSE s
	END;
END $$ LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE;
