package config

import "reflect"

// Variable describes one variable of the environment.
type Variable struct {
	Name        string
	Default     string // as it would be written; empty for none
	Description string // what it is for, in sentences
	Secret      bool   // its value is never shown

	may string
}

// Describe lists the variables in the order of [Config], for --help.
func Describe() []Variable {
	all := variables()
	for i := range all {
		all[i].may = ""
	}
	return all
}

func variables() []Variable {
	fields := reflect.TypeFor[Config]()
	var all []Variable
	for i := range fields.NumField() {
		f := fields.Field(i)
		all = append(all, Variable{
			Name:        f.Tag.Get("envconfig"),
			Default:     f.Tag.Get("default"),
			Description: f.Tag.Get("desc"),
			Secret:      f.Type == reflect.TypeFor[Secret](),
			may:         f.Tag.Get("may"),
		})
	}
	return all
}
