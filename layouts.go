package hapax

// The built-in layouts. Their specs never change: a pool's layout is frozen in
// the store. In the drawings the highest bit is on the left.
const (
	// LayoutLeaf is Leaf's snowflake, and the default: 4,096 IDs a millisecond
	// and worker until 2080-07-10.
	//
	//	 63 62                          22 21        12 11          0
	//	+--+------------------------------+------------+-------------+
	//	| 0|  time, 1 ms (41)             | worker (10)|sequence (12)|
	//	+--+------------------------------+------------+-------------+
	LayoutLeaf = "leaf"

	// LayoutUIDGenerator28 is uid-generator's default. Its time ended on
	// 2024-11-20 at 13:24:16 UTC: it reads old IDs and issues no new ones.
	//
	//	 63 62              35 34                13 12            0
	//	+--+------------------+--------------------+---------------+
	//	| 0|  time, 1 s (28)  |  worker (22)       | sequence (13) |
	//	+--+------------------+--------------------+---------------+
	LayoutUIDGenerator28 = "uidgenerator-28-22-13"

	// LayoutUIDGenerator29 is the sample of uid-generator's documentation: 8,192
	// IDs a second and worker until 2033-09-24.
	//
	//	 63 62               34 33               13 12            0
	//	+--+-------------------+-------------------+---------------+
	//	| 0|  time, 1 s (29)   |  worker (21)      | sequence (13) |
	//	+--+-------------------+-------------------+---------------+
	LayoutUIDGenerator29 = "uidgenerator-29-21-13"

	// LayoutVestaMaxPeak is Vesta's type 0: 1,048,576 IDs a second and machine
	// until 2049-01-09. Version 1 makes an ID negative.
	//
	//	   63      62      61-60     59             30 29         10 9           0
	//	+-------+------+-------------+----------------+-------------+------------+
	//	|version| type |genMethod (2)| time, 1 s (30) |sequence (20)|machine (10)|
	//	+-------+------+-------------+----------------+-------------+------------+
	LayoutVestaMaxPeak = "vesta-max-peak"

	// LayoutVestaMinGranularity is Vesta's type 1: 1,024 IDs a millisecond and
	// machine until 2049-11-03. Version 1 makes an ID negative.
	//
	//	   63      62      61-60     59              20 19         10 9           0
	//	+-------+------+-------------+-----------------+-------------+------------+
	//	|version| type |genMethod (2)| time, 1 ms (40) |sequence (10)|machine (10)|
	//	+-------+------+-------------+-----------------+-------------+------------+
	LayoutVestaMinGranularity = "vesta-min-granularity"

	// LayoutVestaLegacyMaxPeak is type 0 of Vesta's older generation, which has
	// the machine above the time.
	//
	//	   63      62      61-60     59        50 49            20 19            0
	//	+-------+------+-------------+------------+----------------+-------------+
	//	|version| type |genMethod (2)|machine (10)| time, 1 s (30) |sequence (20)|
	//	+-------+------+-------------+------------+----------------+-------------+
	LayoutVestaLegacyMaxPeak = "vesta-legacy-max-peak"

	// LayoutVestaLegacyMinGranularity is type 1 of Vesta's older generation,
	// which has the machine above the time.
	//
	//	   63      62      61-60     59        50 49             10 9            0
	//	+-------+------+-------------+------------+-----------------+-------------+
	//	|version| type |genMethod (2)|machine (10)| time, 1 ms (40) |sequence (10)|
	//	+-------+------+-------------+------------+-----------------+-------------+
	LayoutVestaLegacyMinGranularity = "vesta-legacy-min-granularity"

	// LayoutCosIDMillisecond is CosId's millisecond snowflake: 4,096 IDs a
	// millisecond and worker until 2089-08-30.
	//
	//	 63 62                          22 21        12 11          0
	//	+--+------------------------------+------------+-------------+
	//	| 0|  time, 1 ms (41)             | worker (10)|sequence (12)|
	//	+--+------------------------------+------------+-------------+
	LayoutCosIDMillisecond = "cosid-millisecond"

	// LayoutCosIDSecond is CosId's second snowflake: 4,194,304 IDs a second and
	// worker until 2088-01-11.
	//
	//	 63 62                32 31        22 21                    0
	//	+--+--------------------+------------+-----------------------+
	//	| 0|  time, 1 s (31)    | worker (10)|  sequence (22)        |
	//	+--+--------------------+------------+-----------------------+
	LayoutCosIDSecond = "cosid-second"

	// LayoutJSSafe53 stays below 2^53, so that IDs survive as JavaScript
	// numbers: 512 IDs a millisecond and worker, 8 workers, until 2089-09-06.
	//
	//	 63   53 52                           12 11        9 8            0
	//	+-------+-------------------------------+-----------+--------------+
	//	|   0   |  time, 1 ms (41)              | worker (3)| sequence (9) |
	//	+-------+-------------------------------+-----------+--------------+
	LayoutJSSafe53 = "js-safe-53"
)

type namedLayout struct {
	name   string
	layout Layout
}

var builtins = []namedLayout{
	builtin(LayoutLeaf, "time:41,worker:10,sequence:12,unit=1ms,epoch=2010-11-04T01:42:54.657Z"),
	builtin(LayoutUIDGenerator28, "time:28,worker:22,sequence:13,unit=1s,epoch=2016-05-19T16:00:00Z"),
	builtin(LayoutUIDGenerator29, "time:29,worker:21,sequence:13,unit=1s,epoch=2016-09-19T16:00:00Z"),
	builtin(LayoutVestaMaxPeak, "version:1,type:1,genMethod:2,time:30,sequence:20,machine:10,unit=1s,epoch=2014-12-31T16:00:00Z"),
	builtin(LayoutVestaMinGranularity, "version:1,type:1,genMethod:2,time:40,sequence:10,machine:10,unit=1ms,epoch=2014-12-31T16:00:00Z"),
	builtin(LayoutVestaLegacyMaxPeak, "version:1,type:1,genMethod:2,machine:10,time:30,sequence:20,unit=1s,epoch=2014-12-31T16:00:00Z"),
	builtin(LayoutVestaLegacyMinGranularity, "version:1,type:1,genMethod:2,machine:10,time:40,sequence:10,unit=1ms,epoch=2014-12-31T16:00:00Z"),
	builtin(LayoutCosIDMillisecond, "time:41,worker:10,sequence:12,unit=1ms,epoch=2019-12-24T16:00:00Z"),
	builtin(LayoutCosIDSecond, "time:31,worker:10,sequence:22,unit=1s,epoch=2019-12-24T16:00:00Z"),
	builtin(LayoutJSSafe53, "time:41,worker:3,sequence:9,unit=1ms,epoch=2020-01-01T00:00:00Z"),
}

func builtin(name, spec string) namedLayout {
	l, err := parseSpec(spec)
	if err != nil {
		panic(err)
	}
	return namedLayout{name, l}
}

// Layouts returns the names of the built-in layouts, always in the same order.
func Layouts() []string {
	names := make([]string, len(builtins))
	for i, b := range builtins {
		names[i] = b.name
	}
	return names
}

// Name returns the name of the built-in layout that l is, or "".
func (l Layout) Name() string {
	for _, b := range builtins {
		if b.layout == l {
			return b.name
		}
	}
	return ""
}
