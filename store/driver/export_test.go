package driver

var (
	EncodeTag = encodeTag
	DecodeTag = decodeTag
)
