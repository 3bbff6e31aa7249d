// Package codec turns numbers into codes for people, and back: invoice numbers with
// a date, invitation codes that cannot be guessed, references that catch a typo.
//
// A [Codec] is described by a spec, which is frozen with the tag whose numbers it
// shows. A spec is text with parts in braces; {{ and }} stand for braces:
//
//	INV-{yyyy}{MM}{dd}-{seq:6}{check}             INV-20261121-0004282
//	{id:8:crockford32:feistel:group=4}{check}     S1D8-Q3HCW
//	{type:user}{id:13:crockford32-lower}          user_00000000000dc
//
// One of these parts shows the number:
//
//	{id:WIDTH…}   a number that never restarts
//	{seq:WIDTH…}  a number that restarts with each period
//	{uuid…}       a UUID of version 8; {uuid:base32} writes it as a TypeID does
//
// A width is the number of digits, filled up with zeros; larger numbers are
// refused. With a plus, as in {seq:4+}, they get longer texts. After the width,
// each optional and in this order:
//
//	ALPHABET      10 (default), 16, crockford32, crockford32-lower, 36, 58, 62, or
//	              = and 2 to 64 distinct printable characters of ASCII other than
//	              blank, colon and braces
//	SCRAMBLER     feistel=KEYID or feistel: a bijection that depends on a key;
//	              reverse: the bits from the lowest to the highest;
//	              multiply: times a constant, modulo how many numbers there are
//	group=N       a hyphen after each N digits
//
// A base32 or a scrambler may follow {uuid. With a plus, a scrambler permutes the
// numbers that have the same length among themselves: codes start short and get
// longer as numbers grow.
//
// The period is shown by {yyyy} or {yy} (2000 to 2099), {Q}, {MM}, {dd} and {HH},
// from the year down to the finest, or by {GGGG}{ww}, the week of ISO 8601 and its
// year. {zone:NAME} sets the time zone, and {fiscal:MM} or {fiscal:MM:end} the
// month in which years and quarters begin, and after which of its two years such a
// year is named; neither is shown itself. Every period is a line of numbers of its
// own, which [Period.String] names.
//
// Further parts:
//
//	{check}       check characters over all digits of the period and the number;
//	              {check:NAME} chooses damm, luhn, mod97, iso7064 or gf
//	{type:NAME}   NAME_ as TypeIDs have it, before all else
//	{key}         the ID of the key that scrambles
//
// All parts but one number have a fixed length, so the length of a text tells
// where each part lies, and no two pairs of period and number share a text.
//
// For fewer than a million numbers, feistel hides the order and the amount from the
// eye only: whoever knows many pairs of number and code can guess others. Codes
// that grant something need a domain that is large against the number of guesses as
// well as of codes.
package codec

//go:generate go run ../internal/codesdoc
