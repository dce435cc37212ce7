// SPDX-License-Identifier: Apache-2.0

// wire uses the official Go types. For each message of the NRI package, it writes one instance with
// every field set, as bytes (NAME.bin) and as JSON (NAME.json), and the numbers of all fields and
// enums with the methods of the services (numbers.json). The output is deterministic.
//
// Values are chosen so that a field of another type would come out differently: numbers reach
// beyond the next smaller type or below zero, and no text or number occurs twice in a message.
// Two Booleans of one message have the same value: numbers.json distinguishes them.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// deepest exceeds any real nesting; a message that contains itself is reported as an error.
const deepest = 16

// inProcess are the names that belong to plugins inside the runtime's process (WebAssembly): they are
// never sent over a socket, and nri-runc supports neither such plugins nor these messages.
var inProcess = map[string]bool{"HostFunctions": true, "LogRequest": true}

type filler struct{ last int64 }

func (f *filler) message(m protoreflect.Message, depth int) error {
	descriptor := m.Descriptor()
	if depth > deepest {
		return fmt.Errorf("%s contains itself: decide how far to follow it", descriptor.FullName())
	}
	if descriptor.Oneofs().Len() > 0 {
		return fmt.Errorf("%s has a oneof: write one instance for each of its arms", descriptor.FullName())
	}
	fields := descriptor.Fields()
	for i := range fields.Len() {
		if err := f.field(m, fields.Get(i), depth); err != nil {
			return err
		}
	}
	return nil
}

func (f *filler) field(m protoreflect.Message, field protoreflect.FieldDescriptor, depth int) error {
	switch {
	case field.IsMap():
		// Only one entry, because the order of several is undefined.
		entries := m.Mutable(field).Map()
		key, err := f.value(field.MapKey(), protoreflect.Value{}, depth)
		if err != nil {
			return err
		}
		value, err := f.value(field.MapValue(), entries.NewValue(), depth)
		if err != nil {
			return err
		}
		entries.Set(key.MapKey(), value)
	case field.IsList():
		list := m.Mutable(field).List()
		for range 2 {
			value, err := f.value(field, list.NewElement(), depth)
			if err != nil {
				return err
			}
			list.Append(value)
		}
	default:
		value, err := f.value(field, m.NewField(field), depth)
		if err != nil {
			return err
		}
		m.Set(field, value)
	}
	return nil
}

// value returns a value for the field; a nested message is filled into empty.
func (f *filler) value(field protoreflect.FieldDescriptor, empty protoreflect.Value, depth int) (protoreflect.Value, error) {
	f.last++
	n := f.last
	switch field.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true), nil
	case protoreflect.EnumKind:
		values := field.Enum().Values()
		// The first value is zero, which is equivalent to unset.
		at := 1 + int(n)%(values.Len()-1)
		return protoreflect.ValueOfEnum(values.Get(at).Number()), nil
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(-n)), nil
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(1<<31 + uint32(n)), nil
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(-(1 << 40) - n), nil
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(1<<63 + uint64(n)), nil
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprintf("%s %d", field.Name(), n)), nil
	case protoreflect.MessageKind:
		return empty, f.message(empty.Message(), depth+1)
	default:
		return empty, fmt.Errorf("%s is of kind %s, for which there is no value yet", field.FullName(), field.Kind())
	}
}

// indented returns deterministic JSON: protojson varies its white space on purpose.
func indented(text []byte) ([]byte, error) {
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

type writer struct {
	dir     string
	numbers numbers
}

// numbers is the content of numbers.json, by name.
type numbers struct {
	Enums    map[string]map[string]protoreflect.EnumNumber  `json:"enums"`
	Messages map[string]map[string]protoreflect.FieldNumber `json:"messages"`
	// The request and response types of each method.
	Services map[string]map[string][2]string `json:"services"`
}

func relative(d protoreflect.Descriptor) string {
	return strings.TrimPrefix(string(d.FullName()), string(d.ParentFile().Package())+".")
}

func (w *writer) message(descriptor protoreflect.MessageDescriptor) error {
	kind, err := protoregistry.GlobalTypes.FindMessageByName(descriptor.FullName())
	if err != nil {
		return err
	}
	m := kind.New()
	if err := (&filler{}).message(m, 0); err != nil {
		return err
	}
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(m.Interface())
	if err != nil {
		return err
	}
	text, err := protojson.Marshal(m.Interface())
	if err != nil {
		return err
	}
	if text, err = indented(text); err != nil {
		return err
	}
	path := filepath.Join(w.dir, relative(descriptor))
	if err := os.WriteFile(path+".bin", wire, 0o644); err != nil {
		return err
	}
	return os.WriteFile(path+".json", text, 0o644)
}

// messages records the messages of a file, or those nested in another message.
func (w *writer) messages(of protoreflect.MessageDescriptors) error {
	for i := range of.Len() {
		descriptor := of.Get(i)
		if descriptor.IsMapEntry() || inProcess[relative(descriptor)] {
			continue
		}
		if err := w.message(descriptor); err != nil {
			return err
		}
		fields := map[string]protoreflect.FieldNumber{}
		for j := range descriptor.Fields().Len() {
			field := descriptor.Fields().Get(j)
			fields[string(field.Name())] = field.Number()
		}
		w.numbers.Messages[relative(descriptor)] = fields
		w.enums(descriptor.Enums())
		if err := w.messages(descriptor.Messages()); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) enums(of protoreflect.EnumDescriptors) {
	for i := range of.Len() {
		numbers := map[string]protoreflect.EnumNumber{}
		values := of.Get(i).Values()
		for j := range values.Len() {
			numbers[string(values.Get(j).Name())] = values.Get(j).Number()
		}
		w.numbers.Enums[relative(of.Get(i))] = numbers
	}
}

func (w *writer) services(of protoreflect.ServiceDescriptors) {
	for i := range of.Len() {
		if inProcess[relative(of.Get(i))] {
			continue
		}
		methods := map[string][2]string{}
		for j := range of.Get(i).Methods().Len() {
			method := of.Get(i).Methods().Get(j)
			methods[string(method.Name())] = [2]string{relative(method.Input()), relative(method.Output())}
		}
		w.numbers.Services[relative(of.Get(i))] = methods
	}
}

func (w *writer) all() error {
	var err error
	of := api.File_pkg_api_api_proto.Package()
	protoregistry.GlobalFiles.RangeFilesByPackage(of, func(file protoreflect.FileDescriptor) bool {
		w.enums(file.Enums())
		w.services(file.Services())
		err = w.messages(file.Messages())
		return err == nil
	})
	if err != nil {
		return err
	}
	// encoding/json sorts the keys of a map.
	text, err := json.MarshalIndent(w.numbers, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(w.dir, "numbers.json"), append(text, '\n'), 0o644)
}

func main() {
	out := flag.String("out", "", "the folder to write to; it must exist")
	flag.Parse()
	w := &writer{dir: *out, numbers: numbers{
		Enums:    map[string]map[string]protoreflect.EnumNumber{},
		Messages: map[string]map[string]protoreflect.FieldNumber{},
		Services: map[string]map[string][2]string{},
	}}
	if err := w.all(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
