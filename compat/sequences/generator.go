package sequences

import "context"

func (p *postgres) generators(context.Context, string) ([]*Source, []string, error) {
	return nil, nil, nil
}
func (p *postgres) generatorAt(context.Context, part) (int64, error)        { return 0, nil }
func (p *postgres) generatorSteps(*Source, Switch, int64) ([]string, error) { return nil, nil }
func (p *postgres) generatorBackSteps(*Source, int64) ([]string, error)     { return nil, nil }
