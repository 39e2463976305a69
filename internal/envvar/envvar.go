// Package envvar fills structs from the environment and describes their variables. The tags of a field state its
// variable: envconfig is the name, default the default, desc a description, and may what the value may be.
package envvar

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/kelseyhightower/envconfig"
)

// Variable describes one variable of the environment.
type Variable struct {
	Name        string
	Default     string // as it would be written; empty for none
	Description string // its purpose, in sentences
	May         string // ends the sentence "it may be …"
	Secret      bool   // its value is never shown

	field int // its number in its struct
}

// Describe lists the variables of structs, given by pointers, in the order of their fields. A field without a name for
// its variable has none.
func Describe(configs ...any) []Variable {
	var all []Variable
	for _, config := range configs {
		t := reflect.TypeOf(config).Elem()
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Tag.Get("envconfig") == "" {
				continue
			}
			_, secret := reflect.Zero(f.Type).Interface().(interface{ Reveal() string })
			all = append(all, Variable{
				Name: f.Tag.Get("envconfig"), Default: f.Tag.Get("default"), Description: f.Tag.Get("desc"), May: f.Tag.Get("may"),
				Secret: secret, field: i,
			})
		}
	}
	return all
}

// InvalidError is the error of an environment with wrong values.
type InvalidError struct {
	// Problems are sentences, one a variable, in the order of the fields: its name, its value unless that is secret, and
	// what it may be.
	Problems []string
}

// Error prints one problem a line.
func (e *InvalidError) Error() string { return strings.Join(e.Problems, "\n") }

// Read fills structs, given by pointers. lookup returns the value of a variable, and "" for one that is not set. A
// value of only white space counts as not set; text is trimmed. A struct with a method Lookup is then given the lookup
// of further variables, for names that a file of its own lists. A struct with a method Wrong is asked at last which
// variables cannot be used beyond their types, each with a reason that may be empty. The error is an [*InvalidError]
// with every wrong value.
func Read(lookup func(name string) string, configs ...any) error {
	e := &InvalidError{}
	for _, config := range configs {
		variables := Describe(config)
		var unreadable []string // without the errors, which show values that may be secret
		for _, v := range variables {
			if readField(reflect.ValueOf(config).Elem(), v.field, strings.TrimSpace(lookup(v.Name))) != nil {
				unreadable = append(unreadable, v.Name)
			}
		}
		if c, ok := config.(interface {
			Lookup(func(name string) string)
		}); ok {
			c.Lookup(func(name string) string { return strings.TrimSpace(lookup(name)) })
		}
		var wrong map[string]string
		if c, ok := config.(interface{ Wrong() map[string]string }); ok {
			wrong = c.Wrong()
		}
		for _, v := range variables {
			if reason, refused := wrong[v.Name]; refused || slices.Contains(unreadable, v.Name) {
				e.Problems = append(e.Problems, v.problem(lookup(v.Name), reason))
			}
		}
	}
	if len(e.Problems) > 0 {
		return e
	}
	return nil
}

// readField lets envconfig read one field, as a struct of its own, since it stops at its first error. It reads the
// process's environment, so the value is given to it as the default of a variable whose name nothing can have.
func readField(config reflect.Value, i int, value string) error {
	f := config.Type().Field(i)
	f.Tag = reflect.StructTag(fmt.Sprintf(`envconfig:"=" default:%q`, cmp.Or(value, f.Tag.Get("default"))))
	one := reflect.New(reflect.StructOf([]reflect.StructField{{Name: f.Name, Type: f.Type, Tag: f.Tag}}))
	err := envconfig.Process("", one.Interface())
	config.Field(i).Set(one.Elem().Field(0))
	return err
}

func (v Variable) problem(value, reason string) string {
	if runes := []rune(value); len(runes) > 80 {
		value = string(runes[:79]) + "…"
	}
	is := fmt.Sprintf("is %q", value)
	if v.Secret {
		is = "is not valid (its value is not shown)"
	}
	if reason != "" {
		is += ": " + reason
	}
	return fmt.Sprintf("%s %s; it may be %s", v.Name, is, v.May)
}
